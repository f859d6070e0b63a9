"""Modules built without memory (on the meta device), filled as an ordinary construction does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.overrides import TorchFunctionMode

from lightlib.errors import MisconfigurationException
from lightlib.strategies._torch import give_memory

__all__ = ["fill", "on_meta"]


class _Remembers(Protocol):
    _rng: Tensor | None


@contextmanager
def on_meta(owner: _Remembers) -> Iterator[None]:
    """Build on the meta device, where nothing has values; the generator's state is kept in `owner` for `fill`.

    Raises:
        MisconfigurationException: A value is set outside of a `reset_parameters`, where it would be lost.
    """
    owner._rng = torch.get_rng_state()  # noqa: SLF001  this is what the context is for
    with torch.device("meta"), _RefuseLostValues():
        yield


def fill(module: nn.Module, device: torch.device, rng: Tensor | None) -> None:
    """Give parameters and buffers on the meta device their memory on `device`, and their first values.

    Each layer is filled whole by its `reset_parameters`, in the order of construction and from the same random numbers,
    and then cut to this process's part; so the values are those of a module built in the ordinary way, bit for bit.
    What has memory keeps its values.

    Args:
        module: Its parameters are plain or DTensors, on the meta device.
        device: Where they are to be.
        rng: The generator's state when the construction began; None is the present one.

    Raises:
        MisconfigurationException: A layer with parameters has no `reset_parameters`.
    """
    _refuse_without_reset(module)
    empty = [(name, part) for name, part in module.named_modules() if _on_meta(part)]
    give_memory(module, device)
    if rng is not None:
        torch.set_rng_state(rng)
    for name, part in empty:
        own = dict(part.named_parameters(recurse=False))
        reset: Callable[[], Any] = part.reset_parameters
        if not any(isinstance(parameter, DTensor) for parameter in own.values()):
            reset()
            continue
        _fill_whole(part, own, reset, device, name)


def _on_meta(part: nn.Module) -> list[str]:
    """Return the names of the parameters and buffers of one layer that have no memory."""
    tensors = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
    return [name for name, tensor in tensors if tensor.is_meta]


def _fill_whole(
    part: nn.Module, own: Mapping[str, nn.Parameter], reset: Callable[[], Any], device: torch.device, name: str
) -> None:
    for key, parameter in own.items():
        part._parameters[key] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device=device))  # noqa: SLF001
    try:
        reset()
    finally:
        whole = {key: part._parameters[key] for key in own}  # noqa: SLF001
        part._parameters.update(own)  # noqa: SLF001
    for key, parameter in own.items():
        value = whole[key]
        assert value is not None, name
        with torch.no_grad():
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                parameter.copy_(distribute_tensor(value.detach(), mesh, placements, src_data_rank=None))
            else:
                parameter.copy_(value.detach())


def _refuse_without_reset(module: nn.Module) -> None:
    for name, part in module.named_modules():
        lost = [key for key, value in vars(part).items() if isinstance(value, Tensor) and value.is_meta]
        if lost:
            where = f"{name or type(module).__name__} ({type(part).__name__})"
            raise MisconfigurationException(
                f"{where} was built without memory, and its attribute {lost[0]!r} is a tensor that is no parameter and "
                "no buffer: nothing would give it values.",
                expected="layers alone in configure_model, with parameters and buffers.",
                fix="build it in __init__ (a torchmetric, for instance), or register_buffer.",
            )
        held = _on_meta(part)
        if held and not callable(getattr(part, "reset_parameters", None)):
            where = f"{name or type(module).__name__} ({type(part).__name__})"
            raise MisconfigurationException(
                f"{where} was built without memory, holds {held[0]!r}, and has no `reset_parameters`.",
                expected="a method that gives every parameter and buffer of its own the first value.",
                fix=f"define {type(part).__name__}.reset_parameters(self) and call it in __init__, or build with "
                "memory (meta=False, empty_init=False).",
            )


class _RefuseLostValues(TorchFunctionMode):
    """Refuses to write values into parameters that have no memory, except where `fill` will write them again."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.startswith("_") and name not in ("requires_grad_", "detach_"):
            target = args[0] if args else None
            if isinstance(target, nn.Parameter) and target.is_meta and not _within_reset():
                raise _lost(name)
        return func(*args, **(kwargs or {}))


def _within_reset() -> bool:
    frame = sys._getframe(2)  # noqa: SLF001  the way to know who calls
    while frame is not None:
        if frame.f_code.co_name in ("reset_parameters", "_reset_parameters"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _lost(name: str) -> MisconfigurationException:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
    while frame is not None and "torch" in frame.f_code.co_filename.replace("\\", "/").split("/"):
        frame = frame.f_back
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "the construction"
    return MisconfigurationException(
        f"{where} sets the values of a parameter ({name}) while the module is built without memory: they are lost.",
        expected="values that are set in a method `reset_parameters` of the layer, which is called again later.",
        fix="move the line into `reset_parameters`, or build with memory (meta=False, empty_init=False).",
    )
