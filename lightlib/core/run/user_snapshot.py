"""Snapshot: the user's objects at one moment, as digests of their attributes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lightlib.core.metrics.torchmetric import is_metric
from lightlib.core.run.user_objects import Owner, owners_of, parts_of_module, within
from lightlib.core.values.attributes import ABSENT, SnapshotContext, is_a
from lightlib.core.values.class_source import LIBRARIES, root_of
from lightlib.core.values.classes import functions_of_class, hooks_on
from lightlib.core.values.digest import digest

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

_FLAGS = ("training", "requires_grad", "metrics")


@dataclass
class Snapshot:
    """The user's objects at one moment.

    Attributes:
        known: The run's own parts, and the types and containers found.
        digests, ids: By object and attribute.
        training, requires_grad: Flags of submodules and parameters, by name.
        metrics: Digests of the module's torchmetrics, by name.
        kinds: The classes of the module's parts, by name.
        hooks: The names of the user's hooks on them and on parameters, by name.
    """

    known: SnapshotContext
    owners: list[Owner] = field(default_factory=list)
    digests: dict[tuple[str, str], Any] = field(default_factory=dict)
    ids: dict[tuple[str, str], int] = field(default_factory=dict)
    training: dict[str, bool] = field(default_factory=dict)
    requires_grad: dict[str, bool] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, type] = field(default_factory=dict)
    hooks: dict[str, list[str]] = field(default_factory=dict)


def snapshot(run: Run, start: Snapshot | None, owners: list[Owner] | None = None) -> Snapshot:
    """Take a snapshot of the user's objects.

    Args:
        start: The snapshot from the start of training; None to take that one.
        owners: The objects; default: all of the run.
    """
    owners = owners_of(run) if owners is None else owners
    context = context_of(run, owners)
    if start is not None:
        context.use_containers(start.known.ids)
    types = None if start is None else start.known.types
    taken = Snapshot(context, list(within(owners, context, types)))
    excluded = _saved_by_the_run(run) | {id(owner.held) for owner in taken.owners if not is_a(owner.held, type)}
    for owner in taken.owners:
        context.types[owner.place] = type(owner.held)
        if is_a(owner.held, type):
            context.types |= {f"{owner.place}.{name}": value for name, value in functions_of_class(owner.held)}
        for name, value in owner.attributes():
            if id(value) in excluded and value is not owner.held:
                continue
            key = owner.place, name
            try:
                taken.digests[key] = digest(value, context, f"{owner.place}.{name}")
            except Exception:  # noqa: BLE001  it runs the user's code: `__len__`, `__iter__`, `__eq__`
                taken.digests[key] = type(value).__name__, id(value)
            taken.ids[key] = id(value)
    if start is None:
        context.use_containers(dict(context.seen))
    taken.hooks |= hooks_on(run.module)
    for name, part in run.module.named_modules():
        taken.training[name], taken.kinds[name] = part.training, type(part)
        if is_metric(part) and id(part) not in excluded:
            try:
                states = {at: digest(state, context.again(), at) for at, state in part.metric_state.items()}
                taken.metrics[name] = part.update_count, states
            except Exception:  # noqa: BLE001  a metric of the user's
                taken.metrics[name] = id(part)
    taken.requires_grad |= {name: parameter.requires_grad for name, parameter in run.module.named_parameters()}
    return taken


def changed_since(before: Iterable[Snapshot], now: Snapshot) -> Snapshot:
    """Return the values that have changed, as the first snapshot with their object has them; ABSENT if it has none.

    Args:
        before: Snapshots in order; a later one may have more objects.
        now: The present. An object that only this snapshot has is left out, for it may be as it was made.
    """
    first, places = Snapshot(now.known), set[str]()
    for taken in before:
        first.digests.update({key: value for key, value in taken.digests.items() if key[0] not in places})
        first.ids.update({key: value for key, value in taken.ids.items() if key[0] not in places})
        places |= {owner.place for owner in taken.owners}
        for name in _FLAGS:
            getattr(first, name).update(getattr(taken, name) | getattr(first, name))
    keys = [key for key in first.digests.keys() | now.digests.keys() if key[0] in places]
    changed = [key for key in keys if first.digests.get(key, ABSENT) != now.digests.get(key, ABSENT)]
    flags: dict[str, Any] = {name: _changed_values(getattr(first, name), getattr(now, name)) for name in _FLAGS}
    flags["digests"] = {key: first.digests.get(key, ABSENT) for key in changed}
    return Snapshot(now.known, ids={key: first.ids.get(key, 0) for key in changed}, **flags)


def _changed_values(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in before.items() if name in now and now[name] != value}


def as_before(start: Snapshot, changed: Snapshot | None) -> Snapshot:
    """Return a snapshot in which changed values are as they were before."""
    if changed is None:
        return start
    names = ("digests", "ids", *_FLAGS)
    parts: dict[str, Any] = {name: getattr(start, name) | getattr(changed, name) for name in names}
    return replace(start, **parts)


def context_of(run: Run, owners: list[Owner]) -> SnapshotContext:
    """Return the run's own parts, which values of the user's objects may refer to."""
    roots = {root_of(kind) for owner in owners for kind in type(owner.held).__mro__} - LIBRARIES
    return parts_of_module(run.module, run.strategy.root_device, roots)


def owners_within(run: Run, start: Snapshot | None) -> list[Owner]:
    """Return the user's objects of a run, and the objects that they hold."""
    owners = owners_of(run)
    return list(within(owners, context_of(run, owners), None if start is None else start.known.types))


def _saved_by_the_run(run: Run) -> set[int]:
    """Return the `id` of objects saved in other entries of a checkpoint: the loaders' generators and logged metrics."""
    ids: set[int] = set()
    for source in run.train_data.sources if run.train_data is not None and run.train_data.is_loaded else ():
        ids |= set(map(id, source.generators))
    for data in run.evaluations.loaded.values():
        ids |= {id(generator) for generators in data.generators for generator in generators}
    return ids | {id(slot.metric) for slot in run.results.train.slots.values() if slot.metric is not None}
