"""Learning-rate schedules of an optimizer that gets another group: it follows the first one."""

from __future__ import annotations

from typing import Any

# What schedules note in each group when they are made; they would miss it in a later group.
_NOTED = ("initial_lr", "max_lr", "min_lr", "swa_lr")
_LISTS = ("base_lrs", "max_lrs")


def note_group(groups: list[dict[str, Any]]) -> None:
    """Copy the entries of schedules in the first group to the last one, in proportion to their learning rates."""
    first, last = groups[0], groups[-1]
    ratio = float(last["lr"]) / float(first["lr"]) if float(first["lr"]) else 1.0
    for name in _NOTED:
        if name in first and last.get(name) is None:
            last[name] = first[name] * ratio


def follow_groups(scheduler: Any, groups: list[dict[str, Any]]) -> None:
    """Give a schedule of one learning rate per group those of the later groups.

    torch's schedules have a list with an entry per group, or a function, and raise if the optimizer has more groups.
    """
    for inner in getattr(scheduler, "_schedulers", ()):
        follow_groups(inner, groups)
    first = groups[0].get("initial_lr") or 1.0
    for name in _LISTS:
        rates = getattr(scheduler, name, None)
        if isinstance(rates, list) and rates:
            rates.extend(rates[0] * (group.get("initial_lr", first) / first) for group in groups[len(rates) :])
    functions: Any = getattr(scheduler, "lr_lambdas", None)
    if isinstance(functions, list) and functions:  # a resumed schedule has the rates, and no functions
        functions.extend(functions[:1] * (max(len(groups), len(scheduler.base_lrs)) - len(functions)))
