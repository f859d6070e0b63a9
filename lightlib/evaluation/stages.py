"""Stages of a run that a callback takes part in; the hooks of other stages cost no call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, shown

HOOKS = {"train": "train", "val": "validation", "test": "test", "predict": "predict"}  # as in the names of hooks
MOMENTS = ("epoch_start", "batch_start", "batch_end", "epoch_end")


def check_stages(owner: str, given: Any, known: Sequence[str]) -> tuple[str, ...]:
    """Return the stages that a callback was given: one or several.

    Raises:
        ArgumentTypeError: `given` is no string and no sequence of strings.
        UnknownNameError: There is no such stage, or not for this callback.
        MisconfigurationException: There is none.

    Example:
        >>> check_stages("MetricCallback", ["val", "test"], ("train", "val", "test"))
        ('val', 'test')
    """
    stages = (given,) if isinstance(given, str) else given
    if not isinstance(stages, (tuple, list)) or not all(isinstance(stage, str) for stage in stages):
        raise ArgumentTypeError(
            f"{owner}(stages={shown(given)}).",
            expected=f"one or several of {', '.join(map(repr, known))}.",
            fix=f"{owner}(…, stages=('val', 'test'))",
        )
    for stage in stages:
        if stage not in known:
            raise UnknownNameError(f"stage of {owner}", stage, known, fix=f"{owner}(…, stages={known[0]!r})")
    if not stages:
        raise MisconfigurationException(
            f"{owner}(stages=()).", expected="at least one stage.", fix=f"{owner}(…, stages={known[0]!r})"
        )
    return tuple(dict.fromkeys(stages))


def without_hooks_of(callback: object, stages: Sequence[str]) -> None:
    """Turn the hooks of a callback off for other stages than these, so that they are not called."""
    for stage, word in HOOKS.items():
        for moment in MOMENTS if stage not in stages else ():
            vars(callback)[f"on_{word}_{moment}"] = None
