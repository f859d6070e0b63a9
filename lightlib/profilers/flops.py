"""Floating-point operations: those of a model, and those that a GPU can do per second at most."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from lightlib import report
from lightlib.torch_private import TorchDispatchMode

__all__ = ["OperationCounter", "get_available_flops", "measure_flops"]

_PLAIN = {Tensor, nn.Parameter}
_KINDS: tuple[torch.dtype | str, ...] = (
    torch.float64,
    torch.float32,
    "tfloat32",
    torch.bfloat16,
    torch.float16,
    torch.int8,
    "int4",
)
# 10^12 operations per second, in the order of the line above; those of tensor cores where there are some.
_TABLE = """
    h200 sxm1       | 34   67    990   2000   2000   4000   -
    h200 nvl1       | 30   60    840   1700   1700   3300   -
    h100 nvl        | 67   133.8 989.4 1978.8 1978.8 3957.8 -
    h100 sxm        | 33.5 66.9  494.7 989.4  989.4  1978.9 -
    h100 pcie       | 25.6 51.2  378   756    756    1513   -
    rtx 4090        | -    82.6  82.6  82.6   82.6   660.6  1321.2
    rtx 4080        | -    48.7  48.7  48.7   48.7   389.9  779.8
    rtx 4080 super  | -    52.2  52.2  52.2   52.2   417.6  835.2
    l4              | -    30.3  60    121    121    242    484
    l40             | -    90.5  90.5  181    181    362    724
    a100            | 9.7  19.5  156   312    312    624    -
    a6000           | -    38.7  77.4  38.7   38.7   309.7  619.3
    a40             | -    37.4  74.8  37.4   37.4   299.3  598.7
    a10g            | -    31.2  62.5  125    125    250    500
    rtx 3090 ti     | -    40    40    40     40     320    640
    rtx 3090        | -    35.6  35.6  35.6   35.6   284    568
    rtx 3080 ti     | -    34.1  34.1  34.1   34.1   272.8  546.6
    rtx 3080        | -    29.8  29.8  29.8   29.8   238    476
    rtx 3070        | -    20.3  20.3  20.3   20.3   162.6  325.2
    t4              | -    8.1   -     -      65     130    260
    quadro rtx 5000 | -    11.2  -     -      89.2   -      -
    rtx 2080 super  | -    11.2  -     -      22.3   178.4  356.8
    rtx 2080 ti     | -    14.2  -     -      28.5   227.7  455.4
    rtx 2080        | -    10.6  -     -      21.2   169.6  339.1
    rtx 2070 super  | -    9.1   -     -      18.1   145    290
    titan rtx       | -    16.3  -     -      32.6   261    522
    v100 sxm        | 7.8  15.7  -     -      125    -      -
    v100 pcie       | 7    14    -     -      112    -      -
    v100s pcie      | 8.2  16.4  -     -      130    -      -
"""
# The first row whose words are all in the name of a device gives its chip.
_NAMES = (
    ("h200 sxm1", "h200 sxm1"),
    ("h200 nvl1", "h200 nvl1"),
    ("h100 hbm3", "h100 sxm"),
    ("h100 nvl", "h100 nvl"),
    ("h100 pcie", "h100 pcie"),
    ("h100 hbm2e", "h100 pcie"),
    ("l4 tesla", "l40"),
    ("a6000", "a6000"),
    ("a100", "a100"),
    ("a40", "a40"),
    ("a10g", "a10g"),
    ("quadro rtx 5000", "quadro rtx 5000"),
    ("titan rtx", "titan rtx"),
    ("v100-sxm", "v100 sxm"),
    ("v100-pcie", "v100 pcie"),
    ("v100s-pcie", "v100s pcie"),
    ("t4", "t4"),
)


class OperationCounter:
    """Counts the floating-point operations that this process computes between `start` and `stop`.

    It uses the formulas of torch's `FlopCounterMode`: two for each multiplication and addition of a matrix product or a
    convolution, forward and backward. Of sharded tensors it counts those of the local shard. Meanwhile, compiled
    functions run eagerly; `flex_attention`, which torch cannot count either, raises an error of torch.

    Example:
        >>> layer, counter = nn.Linear(32, 2), OperationCounter()
        >>> counter.start()
        >>> layer(torch.zeros(4, 32)).sum().backward()
        >>> counter.stop()  # of the output, and of the gradient of the weights
        1024
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._counting: _Counting | None = None

    def start(self) -> None:
        """Start counting at 0."""
        self._stack.close()
        self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self._counting = self._stack.enter_context(_Counting())

    def stop(self) -> int:
        """Stop counting, and return the number; 0 if it was not started."""
        self._stack.close()
        counting, self._counting = self._counting, None
        return 0 if counting is None else counting.total


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    supports_higher_order_operators = True

    def __init__(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode  # optional: slow to import

        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.total = 0
        self._formulas = FlopCounterMode(display=False).flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(tensor_type, "__tensor_flatten__") for tensor_type in types):
            return NotImplemented  # their class calls operations on the tensors within, which come here as well
        kwargs, packet = kwargs or {}, getattr(func, "overloadpacket", None)
        if packet is None or not _PLAIN.issuperset(types):  # of a higher order; or on shapes alone, as DTensor does
            return func(*args, **kwargs)
        formula = self._formulas.get(packet)
        if formula is None:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=result))
        return result


def measure_flops(
    model: nn.Module,  # noqa: ARG001 (Lightning's signature)
    forward_fn: Callable[[], Tensor],
    loss_fn: Callable[[Tensor], Tensor] | None = None,
) -> int:
    """Return the floating-point operations of a forward pass, or of a forward and a backward pass.

    Args:
        model: Best made on the device ``"meta"``, where nothing is computed.
        forward_fn: Calls the model and returns its output.
        loss_fn: Returns the loss of that output; the backward pass from it is counted, too.

    Example:
        >>> with torch.device("meta"):
        ...     model, x = nn.Linear(32, 2), torch.randn(4, 32)
        >>> measure_flops(model, lambda: model(x))
        512
    """
    from torch.utils.flop_counter import FlopCounterMode  # optional: slow to import

    with FlopCounterMode(display=False) as counter:
        output = forward_fn()
        if loss_fn is not None:
            loss_fn(output).backward()  # type: ignore[no-untyped-call]  # torch's
    return int(counter.get_total_flops())


def get_available_flops(device: torch.device, dtype: torch.dtype | str) -> int | None:
    """Return the operations per second that a device can do at most; None if its data sheet is not known.

    Args:
        device: A CUDA device; any other one gives None.
        dtype: A dtype, ``"tfloat32"`` or ``"int4"``. float32 means TF32 where torch multiplies in it.

    Example:
        >>> get_available_flops(torch.device("cpu"), torch.float32)
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    chip = _chip(name.lower())
    figures = _figures().get(chip)
    if figures is None:
        report.warn(f"The operations per second of {name!r} are not known.")
        return None
    if dtype is torch.float32 and _uses_tf32(device):
        dtype = "tfloat32"
    if dtype not in figures:
        report.warn(f"The data sheet of {name!r} has no figure for {dtype}.")
        return None
    return figures[dtype]


def _uses_tf32(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 8 and torch.get_float32_matmul_precision() != "highest"


def _chip(name: str) -> str:
    """Return the name of a chip in the table, or ``""``."""
    words = name.split()
    if "geforce rtx" in name and len(words) > 3:
        more = " super" if "super" in name else " ti" if "ti" in words else ""
        return f"rtx {words[3]}{more}"
    match = next((chip for looked, chip in _NAMES if all(part in name for part in looked.split())), "")
    return match or ("l4" if "l4" in name else "")


def _figures() -> dict[str, dict[torch.dtype | str, int]]:
    figures: dict[str, dict[torch.dtype | str, int]] = {}
    for line in _TABLE.strip().splitlines():
        chip, _, row = line.partition("|")
        pairs = zip(_KINDS, row.split(), strict=True)
        figures[chip.strip()] = {kind: round(float(figure) * 1e12) for kind, figure in pairs if figure != "-"}
    return figures
