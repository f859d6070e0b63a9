"""Work: counts the messages and the floating-point operations of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from lightlib.torch_private import TorchDispatchMode, flattened, group_of, is_of_dtensors
from lightlib.torch_private import packet_of as named

# What of a complete tensor each of n processes sends, by rings as NCCL and gloo do it:
# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, by the names of torch's operations.
_SHARES: dict[str, tuple[str, Callable[[int], float]]] = {
    "reduce_scatter": ("reduce-scatter", lambda n: (n - 1) / n),
    "allreduce": ("all-reduce", lambda n: 2 * (n - 1) / n),
    "allgather": ("all-gather", lambda n: (n - 1) / n),
    "broadcast": ("broadcast", lambda n: 1.0),
    "alltoall": ("all-to-all", lambda n: (n - 1) / n),
    "send": ("point-to-point", lambda n: 1.0),
}


class Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the messages and the operations of this process.

    Args:
        per_machine: The number of processes of a machine.

    Attributes:
        sent: The bytes that this process sends, by the kind of message.
        between: Those of groups whose processes are on several machines.
        flops: Floating-point operations of matrix products, convolutions and attention.
    """

    def __init__(self, per_machine: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.per_machine = per_machine
        self.begin()

    def begin(self) -> None:
        """Count from 0 again."""
        self.sent: Counter[str] = Counter()
        self.between, self.flops = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_of_dtensors(types):
            return NotImplemented
        output = func(*args, **(kwargs or {}))
        packet = named(func)
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(packet.__name__.replace("all_", "all").strip("_"), args, output)
        elif packet in flop_registry:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=output)
        return output

    def _count(self, name: str, args: Any, output: Any) -> None:
        share_of_rank = next((share for start, share in _SHARES.items() if name.startswith((start, f"i{start}"))), None)
        ranks = group_of(args) if share_of_rank is not None else ()
        if share_of_rank is None or len(ranks) < 2:
            return
        kind, share = share_of_rank
        size = round(share(len(ranks)) * max(_bytes(value) for value in (*args, output)))
        self.sent[kind] += size
        if len({rank // self.per_machine for rank in ranks}) > 1:
            self.between += size


def _bytes(value: Any) -> int:
    if not isinstance(value, (Tensor, list, tuple)):
        return 0
    return sum(leaf.numel() * leaf.element_size() for leaf in flattened(value)[0] if isinstance(leaf, Tensor))
