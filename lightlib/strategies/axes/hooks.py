"""How DistributedDataParallel sends gradients: compressed to a smaller dtype, or as low-rank matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed

from lightlib.errors import ArgumentTypeError, UnknownNameError, shown

__all__ = ["communication_hook"]

Hook = Callable[[Any, Any], Any]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def communication_hook(hook: str | Hook, state: Any, group: Any) -> tuple[Any, Hook]:
    """Return state and hook for `DistributedDataParallel.register_comm_hook`.

    Args:
        hook: ``"bf16"``, ``"fp16"`` (gradients are sent in that dtype), ``"powersgd"`` (Vogels et al., 2019:
            arXiv 1905.13727), or a hook.
        state: What a hook of the user's gets; for ``"powersgd"`` a PowerSGDState or None.
        group: The processes that average.

    Raises:
        UnknownNameError: No hook has this name.
    """
    if callable(hook):
        return state, hook
    if not isinstance(hook, str):
        raise ArgumentTypeError(
            f"comm_hook is {shown(hook)}.",
            expected="'bf16', 'fp16', 'powersgd' or a function hook(state, bucket).",
            fix="DDPStrategy(comm_hook='bf16')",
        )
    if hook in _DTYPES:
        return group, compressed_to(_DTYPES[hook])
    if hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # optional: only for this hook

        made = state or powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=10)
        return made, powerSGD_hook.powerSGD_hook
    raise UnknownNameError("comm_hook", hook, ("bf16", "fp16", "powersgd"), fix="DDPStrategy(comm_hook='bf16')")


def compressed_to(dtype: torch.dtype) -> Hook:
    """Return a hook that averages gradients in `dtype`. torch's own for bfloat16 works with NCCL only."""

    def hook(group: Any, bucket: Any) -> Any:
        buffer: Tensor = bucket.buffer()
        small = buffer.to(dtype).div_(distributed.get_world_size(group))
        work = distributed.all_reduce(small, group=group, async_op=True)
        return work.get_future().then(lambda future: buffer.copy_(future.value()[0]))

    hook.__annotations__.clear()  # torch compares annotations with classes; here they are strings
    return hook
