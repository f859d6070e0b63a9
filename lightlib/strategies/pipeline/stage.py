"""A stage of a pipeline: which layers stay here, and how they are called through the part."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightlib.errors import MisconfigurationException
from lightlib.strategies.pipeline.split import CONTAINERS, Split, Unit, outside
from lightlib.torch_private import shadowed
from lightlib.tree import map_tensors

Call = tuple[tuple[Any, ...], dict[str, Any]]


class AbsentLayerError(AttributeError):
    """A layer was used that is on another process."""


class AbsentLayer:
    """Stands in for a layer that another stage has. It has no parameters, so that optimizers can be made of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter(())

    buffers = children = modules = parameters

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return iter(())

    named_buffers = named_children = named_modules = named_parameters

    def train(self, mode: bool = True) -> AbsentLayer:
        return self

    eval = requires_grad_ = to = cpu = cuda = apply = train

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AbsentLayerError(f"self.{self.name} is on another stage of the pipeline")

    def __getattr__(self, name: str) -> Any:
        raise AbsentLayerError(f"self.{self.__dict__.get('name', '')} is on another stage of the pipeline: no {name!r}")

    def __repr__(self) -> str:
        return f"AbsentLayer({self.name!r})"


class _AbsentValues:
    """Values for parameters of other stages: NaN, so that using them is detected; they take no memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._values: dict[torch.dtype, Tensor] = {}

    def like(self, tensor: Tensor) -> Tensor:
        floating = tensor.is_floating_point() or tensor.is_complex()
        if tensor.dtype not in self._values:
            value = float("nan") if floating else 0
            self._values[tensor.dtype] = torch.full((), value, dtype=tensor.dtype, device=self.device)
        return self._values[tensor.dtype].expand(tensor.shape)

    @contextmanager
    def harmless(self) -> Iterator[None]:
        """Make all of them 0 for a while."""
        for value in self._values.values():
            value.zero_()
        try:
            yield
        finally:
            for dtype, value in self._values.items():
                value.fill_(float("nan") if dtype.is_floating_point or dtype.is_complex else 0)


class _Reached(BaseException):
    """The last layer of the stage has been called; not an Exception, so that user code does not catch it."""

    def __init__(self, output: Any) -> None:
        self.output = output


class _StandIn(nn.Module):
    """In place of one block in the ModuleList, while a stage runs; attributes are those of the block."""

    def __init__(self, block: nn.Module, stage: Stage, place: int) -> None:
        super().__init__()
        del self.__dict__["training"]  # the block knows
        self.__dict__.update(block=block, stage=stage, place=place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["block"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a block of the stage, and stop the forward after its last one; earlier ones return the stage's input."""
        stage: Stage = self.__dict__["stage"]
        place: int = self.__dict__["place"]
        stage.passed(place)
        if place < stage.begin:
            last_before = place + 1 == stage.begin
            return stage.received if last_before else map_tensors(stage.absent_values.like, stage.received)
        if place >= stage.end:
            raise stage.out_of_order(place)
        output = self.__dict__["block"](*args, **kwargs)
        if place + 1 == stage.end and not stage.is_last:
            raise _Reached(output)
        return output


class Stage:
    """The layers of one stage, called through the part itself, so that its hooks and options hold.

    Attributes:
        absent_values: The values of parameters of other stages.
        outside: The modules outside of the pipelined part that this stage has.
        received: What the stage before sent, while this one runs.
        begin, end: The blocks that this stage has, of the kind ``"blocks"``.
        swaps: Modules, and the attributes of each while this stage runs.
    """

    def __init__(
        self,
        split: Split,
        index: int,
        count: int,
        absent_values: _AbsentValues,
        context: Callable[[], Any] | None,
        outside: Sequence[nn.Module],
    ) -> None:
        self.split, self.index, self.count, self.absent_values = split, index, count, absent_values
        self.context: Callable[[], AbstractContextManager[Any]] = context or nullcontext
        self.swaps: list[tuple[nn.Module, dict[str, Any]]] = []
        self.received: Any = None
        self.place, self.outside = 0, outside
        stages = [
            block_stage
            for unit, block_stage in zip(split.units, split.stages, strict=True)
            if unit.owner is split.container
        ]
        local_blocks = [place for place, stage in enumerate(stages) if stage == index]
        self.begin, self.end = (local_blocks[0], local_blocks[-1] + 1) if local_blocks else (0, 0)

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that this stage's backward passes reach."""
        units = self.split.of(self.index)
        parameters = [p for unit in units if isinstance(unit.value, nn.Module) for p in unit.value.parameters()]
        parameters += [p for unit in units for p in unit.owner.parameters(recurse=False)]
        parameters += [p for module in self.outside for p in module.parameters()]
        return iter(dict.fromkeys(parameters))

    def __call__(self, received: Any, call: Call | None) -> Any:
        """Run the stage: on the output of the stage before, or on the step's call of the part."""
        part, self.received, self.place = self.split.part, received, 0
        args, kwargs = self._arguments(call)
        if not self.swaps:
            self.received = None
            with self.context():
                return part(*args, **kwargs)
        with ExitStack() as running:
            running.enter_context(self.context())
            for owner, attributes in self.swaps:
                running.enter_context(shadowed(owner, attributes))
            if self.split.kind == "blocks":
                running.enter_context(shadowed(part, {"forward": partial(self._until_the_end, part.forward)}))
            try:
                return part(*args, **kwargs)
            finally:
                self.received = None

    def _arguments(self, call: Call | None) -> Call:
        if self.index == 0 or self.split.kind == "blocks":
            assert call is not None
            return call
        first = tuple(self.received) if type(self.received) in (tuple, list) else (self.received,)
        if call is None:
            return first, {}
        return (*first, *call[0][len(first) :]), call[1]

    def _until_the_end(self, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            output = forward(*args, **named)
        except _Reached as reached:
            return reached.output
        if not self.is_last or self.place < self.end:
            raise self.out_of_order(self.place)
        return output

    def passed(self, place: int) -> None:
        """Note the call of a block; they come in order, each once."""
        if place != self.place:
            raise self.out_of_order(place)
        self.place += 1

    def out_of_order(self, place: int) -> MisconfigurationException:
        name = f"{type(self.split.part).__name__}.forward"
        blocks = [unit.name for unit in _blocks(self.split)]
        return MisconfigurationException(
            f"{name} does not call the layers {blocks[0]} to {blocks[-1]} one after the other, each once: "
            f"{blocks[min(self.place, len(blocks) - 1)]} was due when it called {blocks[min(place, len(blocks) - 1)]} "
            "or ended.",
            expected="a loop over the ModuleList, so that the pipeline can cut it between two layers.",
            fix=_TOLERANT,
        )

    def used_in_later_stage(self) -> MisconfigurationException:
        """Return the error for a value that a later stage takes from before the layers."""
        return MisconfigurationException(
            f"Stage {self.index} of the pipeline uses a value that parameters of another stage make: "
            f"{type(self.split.part).__name__}.forward hands something else than the output of one layer to a later "
            "one, or uses a layer both before and after them, or layers that come after them are defined before them.",
            expected="layers of which each takes the output of the one before; what comes before them defined before "
            "the ModuleList, and what comes after, after it.",
            fix=_TOLERANT,
        )


_TOLERANT = (
    "name the stages, and let the forward do without absent layers (`x = self.head(x) if self.head is not None "
    "else x`):\n    def parallel_plan(self):\n        return lightlib.ParallelPlan(pipelined='model', "
    "stages=[['embed', 'blocks.0'], ['blocks.1', 'head']])"
)


def keep(
    module: nn.Module,
    split: Split,
    own: list[int],
    count: int,
    device: torch.device,
    context: Callable[[], Any] | None,
) -> dict[int, Stage]:
    """Remove the layers of stages that are not in `own` from `module`, in place; return the local stages.

    Names of the remaining layers do not change: nothing is renumbered.
    """
    absent_values = _AbsentValues(device)
    around = outside(module, split.part)
    layers = [unit.value for unit in around if isinstance(unit.value, nn.Module)]
    kept = split if split.kind == "blocks" else split.only(own)  # those of blocks are hollowed out
    stages = {
        index: Stage(kept, index, count, absent_values, context, layers if index == count - 1 else []) for index in own
    }
    for unit in around:
        if count - 1 not in own and unit.size:
            _take_away(unit)
    owners = {id(unit.owner): unit.owner for unit in split.units}
    before = {id(owner): dict(owner._modules) for owner in owners.values()}  # noqa: SLF001
    absent = [unit for unit, stage in zip(split.units, split.stages, strict=True) if stage not in own]
    for unit in absent:
        _take_away(unit)
    for stage in stages.values():
        for owner in owners.values():
            units = {unit.key: s for unit, s in zip(split.units, split.stages, strict=True) if unit.owner is owner}
            gone = {unit.key for unit in absent if unit.owner is owner}
            _, attributes = swap = _swap(stage, owner, before[id(owner)], units, gone)
            if split.kind == "blocks" or attributes != {"_modules": owner._modules}:  # noqa: SLF001
                stage.swaps.append(swap)
    if split.kind == "blocks":
        _hollow_out(split, stages, absent, before, absent_values)
    return stages


def _swap(
    stage: Stage, owner: nn.Module, before: dict[str, Any], units: dict[str, int], absent: set[str]
) -> tuple[nn.Module, dict[str, Any]]:
    """Return `owner` and its attributes while `stage` runs: its children, and None for absent layers."""
    children: dict[str, Any] = {}
    for key, child in before.items():
        if key not in units or units[key] == stage.index or (stage.split.kind == "blocks" and key not in absent):
            children[key] = child
        elif not isinstance(owner, CONTAINERS):
            children[key] = None
    hidden = () if isinstance(owner, CONTAINERS) else absent
    return owner, {"_modules": children, **dict.fromkeys(hidden)}


def _hollow_out(
    split: Split,
    stages: dict[int, Stage],
    absent: list[Unit],
    before: dict[int, dict[str, Any]],
    absent_values: _AbsentValues,
) -> None:
    """Let forwards that know nothing of stages run: layers of other stages stay callable, without their parameters."""
    places = {unit.key: place for place, unit in enumerate(_blocks(split))}
    gone = {id(unit) for unit in absent}
    hollow = {id(unit): _hollow(unit, absent_values) for unit in absent}
    hollow |= {
        id(unit): _hollow(_copied(unit, absent_values), absent_values)
        for unit in split.units
        if id(unit) not in gone and unit.owner is not split.container
    }
    for stage in stages.values():
        for owner, attributes in stage.swaps:
            children = attributes["_modules"]
            if owner is split.container:
                blocks = before[id(owner)]
                children.clear()
                children.update({key: _StandIn(blocks[key], stage, place) for key, place in places.items()})
                continue
            for unit, index in zip(split.units, split.stages, strict=True):
                if unit.owner is owner and index != stage.index:
                    if isinstance(unit.value, nn.Module):
                        children[unit.key] = hollow[id(unit)]
                    attributes[unit.key] = hollow[id(unit)]


def _blocks(split: Split) -> list[Unit]:
    return [unit for unit in split.units if unit.owner is split.container]


def _copied(unit: Unit, absent_values: _AbsentValues) -> Unit:
    """Return a unit with a layer like this one but no parameters, so that its buffers change once per batch."""
    if not isinstance(unit.value, nn.Module):
        return unit
    memo: dict[int, Any] = {
        id(p): nn.Parameter(absent_values.like(p), requires_grad=False) for p in unit.value.parameters()
    }
    return replace(unit, value=copy.deepcopy(unit.value, memo))


def _hollow(unit: Unit, absent_values: _AbsentValues) -> Any:
    """Return the layer with its parameters replaced by values that take no memory."""
    if not isinstance(unit.value, nn.Module):
        return absent_values.like(unit.value)
    for module in unit.value.modules():
        for key, parameter in list(module.named_parameters(recurse=False)):
            del module._parameters[key]  # noqa: SLF001
            module.__dict__[key] = absent_values.like(parameter)
    return unit.value.to(absent_values.device)


def _take_away(unit: Unit) -> None:
    owner, key = unit.owner, unit.key
    if isinstance(unit.value, nn.Module) and isinstance(owner, CONTAINERS):
        del owner._modules[key]  # noqa: SLF001
        return
    kind = owner._modules if isinstance(unit.value, nn.Module) else owner._parameters  # noqa: SLF001
    kind[key] = None
    owner.__dict__[key] = AbsentLayer(unit.name)
