"""Stages of a run that a callback takes part in; the hooks of other stages cost no call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightlib.errors import check_word, wrong_type, wrong_value

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
        raise wrong_type(owner, "stages", given, f"one or several of {', '.join(map(repr, known))}", "('val', 'test')")
    for stage in stages:
        check_word(owner, "stages", stage, known)
    if not stages:
        raise wrong_value(owner, "stages", stages, "at least one stage", repr(known[0]))
    return tuple(dict.fromkeys(stages))


def without_hooks_of(callback: object, stages: Sequence[str]) -> None:
    """Turn the hooks of a callback off for other stages than these, so that they are not called."""
    for stage, word in HOOKS.items():
        for moment in MOMENTS if stage not in stages else ():
            vars(callback)[f"on_{word}_{moment}"] = None
