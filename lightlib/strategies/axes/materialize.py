"""Modules built without memory (on the meta device), filled as an ordinary construction does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.overrides import TorchFunctionMode

from lightlib.errors import MisconfigurationException
from lightlib.strategies.group.collectives import Collectives
from lightlib.torch_private import RESETS, give_memory, reset_of


@dataclass
class Construction:
    """How a module is built without memory: the generator's state before, and which layers set their first values.

    Attributes:
        rng: The state of the generator when the construction began.
        resets: The modules whose `reset_parameters` was called, in that order, with the method or function of this
            name; what another's calls is left to it.
        known: The ids of these and of those.
    """

    rng: Tensor | None = None
    resets: list[tuple[nn.Module, Callable[[], Any]]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """Record the state of the generator."""
        self.rng = torch.get_rng_state()

    def share(self, collectives: Collectives) -> None:
        """Take the state of rank 0's generator, so that replicas get the same values, also without a seed."""
        self.rng = collectives.broadcast(self.rng)


@contextmanager
def on_meta(construction: Construction) -> Iterator[None]:
    """Build on the meta device, without values; record in `construction` how `fill` computes them.

    Raises:
        MisconfigurationException: A value is set outside of a `reset_parameters`, where it would be lost.
    """
    construction.begin()
    with torch.device("meta"), _NotesResets(construction):
        yield


def fill(module: nn.Module, device: torch.device, construction: Construction) -> None:
    """Give parameters and buffers on the meta device their memory on `device`, and their first values.

    The calls of `reset_parameters` are made again, in the order of the construction and with the same random numbers,
    each on full tensors, of which this process then keeps its shard; so the values are those of a module built in the
    ordinary way, bit for bit. Layers that made no such call (copied layers) draw new values. Tensors with memory keep
    their values.
    """
    _refuse_without_reset(module)
    empty = [part for part in _inner_first(module) if _on_meta(part)]
    present = {id(part) for part in module.modules()}
    give_memory(module, device)
    if construction.rng is not None:
        torch.set_rng_state(construction.rng)
    with torch.random.fork_rng(devices=[]):
        for part in empty:
            if id(part) not in construction.known:
                _reset(part, device)
    before: set[int] = set()
    for part, reset in construction.resets:
        if id(part) in present:
            _reset(part, device, reset, keeps=id(part) in before)
            before.add(id(part))


def _inner_first(module: nn.Module) -> Iterator[nn.Module]:
    """Return a module and all within it, in the order in which their constructions ended."""
    for child in module.children():
        yield from _inner_first(child)
    yield module


def _on_meta(part: nn.Module) -> list[str]:
    """Return the names of the parameters and buffers of one layer that have no memory."""
    tensors = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
    return [name for name, tensor in tensors if tensor.is_meta]


def _reset(part: nn.Module, device: torch.device, by: Callable[[], Any] | None = None, keeps: bool = False) -> None:
    """Reset `part`, and possibly layers within it, with full tensors in place of their shards.

    Args:
        part: The layer.
        device: Where its memory is.
        by: Its method at the time of the construction, which a rule of `init_weights` may have replaced. Default: the
            present one.
        keeps: Whether it may keep values, because it was reset before.
    """
    spread: dict[tuple[nn.Module, str], Any] = {}
    whole: dict[int, nn.Parameter] = {}
    for inner in part.modules():
        for key, parameter in inner.named_parameters(recurse=False):
            if isinstance(parameter, DTensor):
                spread[inner, key] = parameter
                if id(parameter) not in whole:
                    value: Any = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                    if inner is not part or keeps:  # this may change some of it alone
                        value = parameter.full_tensor().detach().to(device)
                    whole[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
                inner._parameters[key] = whole[id(parameter)]  # noqa: SLF001
    reset = by or reset_of(part)
    assert reset is not None, "what has none was refused"
    try:
        reset()
    finally:
        for (inner, key), parameter in spread.items():
            inner._parameters[key] = parameter  # noqa: SLF001
    for parameter in {id(tensor): tensor for tensor in spread.values()}.values():
        value = whole[id(parameter)].detach()
        with torch.no_grad():
            parameter.copy_(distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None))


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
        unplaced = _on_meta(part)
        if unplaced and reset_of(part) is None:
            where = f"{name or type(module).__name__} ({type(part).__name__})"
            raise MisconfigurationException(
                f"{where} was built without memory, holds {unplaced[0]!r}, and has no `reset_parameters`.",
                expected="a method that gives every parameter and buffer of its own the first value.",
                fix=f"define {type(part).__name__}.reset_parameters(self) and call it in __init__, or build with "
                "memory (meta=False, empty_init=False).",
            )


class _NotesResets(TorchFunctionMode):
    """Notes which `reset_parameters` is running when a value is set; refuses values that are set outside of one."""

    def __init__(self, construction: Construction) -> None:
        super().__init__()
        self._construction = construction
        self._last: FrameType | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.startswith("_") and name not in ("requires_grad_", "detach_"):
            target = args[0] if args else next(iter((kwargs or {}).values()), None)  # as in torch.nn.init
            if isinstance(target, Tensor) and target.is_meta:
                self._note(isinstance(target, nn.Parameter), name)
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: object) -> None:
        self._last = None  # and what it holds
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _note(self, is_parameter: bool, name: str) -> None:
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  the way to know who calls
        outermost: tuple[FrameType, nn.Module] | None = None
        while frame is not None:
            if frame.f_code.co_name in RESETS and frame.f_code.co_argcount:
                owner = frame.f_locals.get(frame.f_code.co_varnames[0])
                if isinstance(owner, nn.Module):
                    self._construction.known.add(id(owner))
                    outermost = frame, owner
            frame = frame.f_back
        if outermost is None:
            if is_parameter:
                raise _lost(name)
        elif outermost[0] is not self._last:
            self._last, owner = outermost
            reset = reset_of(owner)
            assert reset is not None, "it is running"
            self._construction.resets.append((owner, reset))


def _lost(name: str) -> MisconfigurationException:
    frame: FrameType | None = sys._getframe(3)  # noqa: SLF001
    while frame is not None and "torch" in frame.f_code.co_filename.replace("\\", "/").split("/"):
        frame = frame.f_back
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "the construction"
    return MisconfigurationException(
        f"{where} sets the values of a parameter ({name}) while the module is built without memory: they are lost.",
        expected="values that are set in a method `reset_parameters` of the layer, which is called again later.",
        fix="move the line into `reset_parameters`, or build with memory (meta=False, empty_init=False).",
    )
