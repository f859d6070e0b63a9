"""Restores the saved changes of the user's objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from lightlib import report
from lightlib.core.metrics.torchmetric import is_metric, load_metric_state
from lightlib.core.module.export import set_modes
from lightlib.core.run.user_objects import owners_of
from lightlib.core.run.user_snapshot import Snapshot, known_to, owners_within
from lightlib.core.values.attributes import ABSENT, Unsaveable
from lightlib.core.values.encoding import restored

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

__all__ = ["Values", "restore_state", "restore_values"]

_DAMAGED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, OverflowError)
Values = dict[str, dict[str, Any]]  # plain values, by object and attribute


def restore_state(run: Run, start: Snapshot | None, saved: Mapping[str, Any], but_read: bool = False) -> None:
    """Restore everything in the user state of a checkpoint.

    Args:
        but_read: Leave out the objects that training loaders read.
    """
    module: nn.Module = run.module
    parts = dict(module.named_modules())
    set_modes({parts[name]: mode for name, mode in saved["training"].items() if name in parts})
    for name, parameter in module.named_parameters():
        if name in saved["requires_grad"]:
            parameter.requires_grad_(saved["requires_grad"][name])
    for name, state in saved["metrics"].items():
        if is_metric(parts.get(name)):
            load_metric_state(parts[name], state)
    everything = owners_within(run, start)
    owners = {owner.place: owner for owner in everything if not (but_read and owner.read)}
    left_out = {owner.place for owner in everything} - owners.keys()
    restore_values(run, start, {place: values for place, values in saved["values"].items() if place not in left_out})
    for place, name in saved["gone"]:
        if place in owners:
            owners[place].drop(name)


def restore_values(run: Run, start: Snapshot | None, values: Values) -> None:
    """Restore attributes of the user's objects, and warn about those that cannot be restored."""
    known, lost = known_to(run, owners_of(run)), []
    owners = {owner.place: owner for owner in owners_within(run, start)}
    for place, attributes in values.items():
        if place not in owners:
            lost.append(f"{place}: there is no such object")
            continue
        current = dict(owners[place].attributes())
        for name, entry in attributes.items():
            try:
                value = restored(entry["value"], current.get(name, ABSENT), known, entry["same"])
                owners[place].assign(name, value)
            except Unsaveable as error:
                lost.append(f"{place}.{name}: {error}")
            except _DAMAGED as error:
                lost.append(f"{place}.{name}: {type(error).__name__}: {error}")
    if lost:
        report.warn(
            "The checkpoint holds changes to objects that this run cannot restore:"
            + "".join(f"\n    {line}" for line in lost)
            + "\n  The program has changed since it was written."
        )
