"""Which layers each stage of a pipeline has: found, balanced and checked before any is taken away."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from torch import nn

from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown
from lightlib.strategies.axes.mixture import MixtureOfExperts
from lightlib.strategies.axes.parallel_plan import ParallelPlan, no_such_module

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Unit:
    """A layer, or a parameter that a module holds itself: it is not cut between stages."""

    owner: nn.Module
    key: str
    name: str
    value: Any

    @property
    def size(self) -> int:
        """How many parameters it has."""
        if isinstance(self.value, nn.Module):
            return sum(parameter.numel() for parameter in self.value.parameters())
        return int(self.value.numel())


@dataclass(frozen=True)
class Split:
    """The part of a module that the pipeline cuts, and the stage of each of its units.

    Attributes:
        name: Of the part; empty when it is the module itself.
        part: What each step calls once.
        kind: ``"chain"``: nested `nn.Sequential`; ``"blocks"``: its forward calls the children of one ModuleList in
            their order; ``"named"``: its forward does without absent layers.
        units: In order.
        stages: The stage of each unit.
        container: The ModuleList of ``"blocks"``.
    """

    name: str
    part: nn.Module
    kind: str
    units: list[Unit]
    stages: list[int]
    container: nn.Module | None = None

    def of(self, stage: int) -> list[Unit]:
        """Return the units of one stage."""
        return [unit for unit, unit_stage in zip(self.units, self.stages, strict=True) if unit_stage == stage]

    def only(self, stages: Collection[int]) -> Split:
        """Return the same without the layers of other stages, which it would keep in memory."""
        left = [pair for pair in zip(self.units, self.stages, strict=True) if pair[1] in stages]
        return replace(self, units=[unit for unit, _ in left], stages=[stage for _, stage in left])


def find_split(module: nn.Module, plan: ParallelPlan, named: Sequence[Any], count: int) -> Split:
    """Return which units of `module`, as the user wrote it, make `count` stages.

    Stages may be `named` in place of those of its plan.

    Raises:
        MisconfigurationException: Nothing to cut is found, names match nothing, or there are too few layers.
    """
    named = named or plan.stages
    name, part, container = _part_of(module, plan, bool(named))
    if named and isinstance(named[0], (list, tuple)):
        return _by_lists(name, part, named, count)
    if named:
        return _by_borders(name, part, container, named, count)
    if plain_sequential(part):
        units = list(_units(part, name, _nested(part)))
        return Split(name, part, "chain", units, _balanced(name, units, count))
    assert container is not None
    return _by_blocks(name, part, container, count)


def plain_sequential(part: nn.Module) -> bool:
    """Return whether `part` calls its children one after the other and nothing else."""
    return isinstance(part, nn.Sequential) and type(part).forward is nn.Sequential.forward


def outside(module: nn.Module, part: nn.Module) -> list[Unit]:
    """Return the units of `module` outside of `part`, with or without parameters."""
    if part is module:
        return []
    above = _above(module, part)
    return [unit for unit in _units(module, "", above) if unit.value is not part]


# what is cut
def _part_of(module: nn.Module, plan: ParallelPlan, named: bool) -> tuple[str, nn.Module, nn.Module | None]:
    modules = dict(module.named_modules())
    if plan.pipelined is not None:
        part = modules.get(plan.pipelined)
        if part is None:
            problem = f"parallel_plan() of {type(module).__name__}: pipelined={plan.pipelined!r} is no module of it."
            raise no_such_module(problem, ", or '' for the module itself.", plan.pipelined, modules)
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)):
            raise MisconfigurationException(
                f"pipelined={plan.pipelined!r} is a {type(part).__name__}, which cannot be called.",
                expected="a module that the step calls.",
                fix=f"the module that loops over it: {plan.pipelined.rpartition('.')[0]!r}.",
            )
        largest = _largest(part)
        if largest is None and not named:
            raise _nothing_to_cut(module, plan.pipelined, part)
        return plan.pipelined, part, largest[1] if largest is not None else None
    largest = _largest(module)
    if largest is None:
        if named:
            raise MisconfigurationException(
                f"{type(module).__name__} names stages, but not the module that they are stages of.",
                expected="parallel_plan() with `pipelined`: the name of the child that the step calls.",
                fix=f"ParallelPlan(pipelined={_heaviest_child(module)!r}, stages=[…])",
            )
        raise _nothing_to_cut(module, "", module)
    name, container = largest
    if plain_sequential(container) and not named:
        return name, container, None
    top, _, _ = name.partition(".")
    child = modules[top]
    if child is container and plain_sequential(container):
        return name, container, None
    return ("", module, container) if isinstance(child, CONTAINERS) else (top, child, container)


def _largest(module: nn.Module, name: str = "") -> tuple[str, nn.Module] | None:
    """Return the outermost ModuleList or Sequential with the most layers."""
    if isinstance(module, (nn.ModuleList, nn.Sequential)) and _layers(module) > 1:
        return name, module
    if isinstance(module, MixtureOfExperts):  # its experts are called side by side
        return None
    nested = [_largest(child, f"{name}.{key}" if name else key) for key, child in module.named_children()]
    candidates = [candidate for candidate in nested if candidate is not None]
    return max(candidates, key=lambda candidate: _layers(candidate[1]), default=None)


def _layers(container: nn.Module) -> int:
    return sum(1 for unit in _units(container, "", _nested(container)) if unit.size)


def _nested(part: nn.Module) -> list[nn.Module]:
    """Return the Sequentials in Sequentials, which are opened."""
    inner = [child for child in part.children() if plain_sequential(part) and plain_sequential(child)]
    return [part, *(sequential for child in inner for sequential in _nested(child))]


def _above(module: nn.Module, part: nn.Module) -> list[nn.Module]:
    return [
        ancestor
        for ancestor in module.modules()
        if ancestor is not part and any(part is inner for inner in ancestor.modules())
    ]


def _units(module: nn.Module, name: str, opened: Sequence[nn.Module]) -> Iterator[Unit]:
    prefix = f"{name}." if name else ""
    for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        yield Unit(module, key, prefix + key, parameter)
    for key, child in module._modules.items():  # noqa: SLF001  a module twice is two units
        if child is None:
            continue
        if any(child is container for container in opened):
            yield from _units(child, prefix + key, opened)
        else:
            yield Unit(module, key, prefix + key, child)


# automatic stages
def balance(costs: Sequence[int], count: int, first: int = 0, last: int = 0) -> list[int]:
    """Return where each of `count` stages begins, so that the most expensive one is as cheap as can be.

    `costs` are those of the layers; the first and the last stage have `first` and `last` besides.

    Example:
        >>> balance([1, 1, 1, 5], 2)
        [0, 3]
    """
    total = [*accumulate(costs, initial=0)]
    number = len(costs)

    def cost_of(begin: int, end: int, stage: int) -> int:
        return total[end] - total[begin] + (first if stage == 0 else 0) + (last if stage == count - 1 else 0)

    best = {end: (cost_of(0, end, 0), [0]) for end in range(1, number + 1)}
    for stage in range(1, count):
        best = {
            end: min(
                (max(best[begin][0], cost_of(begin, end, stage)), [*best[begin][1], begin])
                for begin in range(stage, end)
            )
            for end in range(stage + 1, number + 1)
        }
    return best[number][1]


def _balanced(name: str, units: list[Unit], count: int) -> list[int]:
    """Return the stage of each unit of a chain; units without parameters follow the unit before them."""
    heavy = [index for index, unit in enumerate(units) if unit.size]
    _enough(name, len(heavy), count)
    begins = balance([units[index].size for index in heavy], count)
    return _stages_from([heavy[begin] for begin in begins[1:]], len(units))


def _by_blocks(
    name: str, part: nn.Module, container: nn.Module, count: int, borders: Sequence[str] | None = None
) -> Split:
    opened = [container, *_above(part, container)]
    units = [unit for unit in _units(part, name, opened) if unit.owner is container or unit.size]
    blocks = [index for index, unit in enumerate(units) if unit.owner is container]
    before = sum(unit.size for unit in units[: blocks[0]])
    after = sum(unit.size for unit in units[blocks[-1] + 1 :])
    _enough(f"{name}.{_name_in(part, container)}".strip("."), len(blocks), count)
    if borders is None:
        begins = balance([units[index].size for index in blocks], count, before, after)
        places = [blocks[0] + begin for begin in begins[1:]]
    else:
        places = [next(index for index in blocks if units[index].name == border) for border in borders]
    return Split(name, part, "blocks", units, _stages_from(places, len(units)), container)


def _name_in(part: nn.Module, target: nn.Module) -> str:
    return next((name for name, candidate in part.named_modules() if candidate is target), "")


def _enough(name: str, layers: int, count: int) -> None:
    if layers < count:
        raise MisconfigurationException(
            f"{name or 'the module'} has {layers} layers with parameters, too few for {count} stages.",
            expected="at least one layer with parameters for each stage.",
            fix=f"a pipeline of at most {layers} stages: fewer processes, or stages_per_rank=1; or more layers.",
        )


# named stages
def _by_borders(name: str, part: nn.Module, container: nn.Module | None, named: Sequence[Any], count: int) -> Split:
    named_units = dict(_full_names(name, part))
    borders = [_resolved(border, name, named_units) for border in named]
    opened = [
        unit
        for full, unit in named_units.items()
        if any(border.startswith(f"{full}." if full else "") for border in borders)
    ]
    opened = [part, *(module for module in opened if module is not part)]
    units = list(_units(part, name, opened))
    places = [next(i for i, unit in enumerate(units) if f"{unit.name}.".startswith(f"{border}.")) for border in borders]
    if places != sorted(set(places)):
        raise MisconfigurationException(
            f"stages={list(named)!r} are not in the order of the module.",
            expected="the names at which stages begin, each once, in the order of `named_modules()`.",
            fix=f"stages={[units[place].name for place in sorted(set(places))]!r}",
        )
    if places and not any(unit.size for unit in units[: places[0]]):  # the first stage is named as well
        places, borders = places[1:], borders[1:]
    if len(places) + 1 != count:
        raise _number_of_stages(named, len(places) + 1, count)
    if plain_sequential(part) and all(plain_sequential(module) for module in opened):
        return Split(name, part, "chain", units, _stages_from(places, len(units)))
    if container is not None and all(units[place].owner is container for place in places):
        return _by_blocks(name, part, container, count, borders)
    stages = _stages_from(places, len(units))
    _parameters_in_each(units, stages, count)
    return Split(name, part, "named", units, stages)


def _stages_from(places: Sequence[int], number: int) -> list[int]:
    """Return the stage of each of `number` units; stages after the first one begin at `places`."""
    return [bisect_right(places, index) for index in range(number)]


def _by_lists(name: str, part: nn.Module, named: Sequence[Any], count: int) -> Split:
    if len(named) != count:
        raise _number_of_stages(named, len(named), count)
    named_units = dict(_full_names(name, part))
    lists = [[_resolved(layer, name, named_units) for layer in stage] for stage in named]
    flat = [layer for stage in lists for layer in stage]
    opened = [unit for full, unit in named_units.items() if any(inner.startswith(f"{full}.") for inner in flat)]
    units = list(_units(part, name, [part, *opened]))
    stages = [next((s for s, stage in enumerate(lists) if unit.name in stage), None) for unit in units]
    lost = [unit.name for unit, stage in zip(units, stages, strict=True) if stage is None and unit.size]
    if lost:
        raise MisconfigurationException(
            f"{lost[0]!r} has parameters, but is in no stage of stages={list(named)!r:.200}.",
            expected="each layer with parameters in one stage.",
            fix=f"add {lost[0]!r} to the stage that uses it.",
        )
    kept = [(unit, stage) for unit, stage in zip(units, stages, strict=True) if stage is not None]
    _parameters_in_each([unit for unit, _ in kept], [stage for _, stage in kept], count)
    return Split(name, part, "named", [unit for unit, _ in kept], [stage for _, stage in kept])


def _full_names(name: str, part: nn.Module) -> Iterator[tuple[str, Any]]:
    for inner, layer in part.named_modules(remove_duplicate=False):
        yield f"{name}.{inner}".strip("."), layer
    for inner, parameter in part.named_parameters(remove_duplicate=False):
        yield f"{name}.{inner}".strip("."), parameter


def _resolved(layer: Any, name: str, named_units: Mapping[str, Any]) -> str:
    """Return the full name of a layer that is named as inside of the part `name`."""
    if not isinstance(layer, str):
        raise ArgumentTypeError(
            f"stages holds {shown(layer)}.",
            expected="names at which a stage begins, or one list of names for each stage.",
            fix='stages=["blocks.4"]  or  stages=[["embed", "blocks.0"], ["blocks.1", "head"]]',
        )
    full = layer if not name or f"{layer}.".startswith(f"{name}.") else f"{name}.{layer}"
    if full not in named_units:
        raise no_such_module(
            f"stages names {full!r}, which matches nothing in the pipelined part.", ".", full, named_units
        )
    return full


def _number_of_stages(named: Sequence[Any], num_stages: int, count: int) -> MisconfigurationException:
    return MisconfigurationException(
        f"stages={list(named)!r:.200} makes {num_stages} stages, but the pipeline has {count}.",
        expected=f"{count} stages: processes of the pipeline times stages_per_rank; names at which a stage begins are "
        "one less.",
        fix=f"name {count} stages, or change pipeline= or stages_per_rank=.",
    )


def _parameters_in_each(units: list[Unit], stages: list[int], count: int) -> None:
    for stage in range(count):
        stage_units = [unit for unit, unit_stage in zip(units, stages, strict=True) if unit_stage == stage]
        if not any(unit.size for unit in stage_units):
            raise MisconfigurationException(
                f"Stage {stage} has no parameters: {[unit.name for unit in stage_units]}.",
                expected="at least one layer with parameters for each stage.",
                fix="let stages begin at other layers.",
            )


# suggestions
def _heaviest_child(module: nn.Module) -> str:
    sizes = {name: sum(p.numel() for p in child.parameters()) for name, child in module.named_children()}
    return max(sizes, key=lambda name: sizes[name], default="model")


def _nothing_to_cut(module: nn.Module, name: str, part: nn.Module) -> MisconfigurationException:
    """Return the error that shows the plan to write for this very module."""
    children = [key for key, child in part.named_children() if any(True for _ in child.parameters())]
    if not name and len(children) == 1:
        name, part = children[0], getattr(part, children[0])
        children = [key for key, child in part.named_children() if any(True for _ in child.parameters())]
    half = max(1, len(children) // 2)
    lists = [children[:half], children[half:]]
    first = children[0] if children else "embed"
    return MisconfigurationException(
        f"{type(module).__name__} has no nn.Sequential and no nn.ModuleList of layers, so the pipeline cannot know "
        "where to cut it.",
        expected="layers in an nn.Sequential, or in an nn.ModuleList that the forward loops over, or a plan.",
        fix=f"""put the layers {", ".join(children[:6]) or "…"} into self.layers = nn.Sequential(…), or write
    def parallel_plan(self):
        return lightlib.ParallelPlan(pipelined={name!r}, stages={lists!r})
  and let the forward of {type(part).__name__} do without absent layers:
    x = self.{first}(x) if self.{first} is not None else x""",
    )
