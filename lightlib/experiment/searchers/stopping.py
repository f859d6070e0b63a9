"""Stopping: a trial trains on as long as it is among the best that have reached the same rung."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from lightlib.experiment.searchers.scores import score

__all__ = ["Decision", "continues", "decide", "place"]


@dataclass(frozen=True)
class Decision:
    """The result of one report.

    Attributes:
        action: ``"train"`` to the length of `rung`, ``"stop"``, or ``"complete"`` at the top rung.
        rung: The rung that the trial trains to, or the last one that it reached.
        entered: The rungs that the value counts in from now on.
    """

    action: Literal["train", "stop", "complete"]
    rung: int
    entered: range


def decide(
    rungs: Sequence[Collection[float]], lengths: Sequence[int], *, rung: int, step: int, value: float, divisor: float
) -> Decision:
    """Decide whether a trial trains on after a report. Its value counts in each rung that it has reached.

    Args:
        rungs: The scores in each rung so far, in any order, without this report.
        lengths: The length of each rung.
        rung: The rung that the trial trains to.
        step: The length that the trial has trained, in the unit of `lengths`.
        value: Its score: less is better.
        divisor: About one of so many trials trains on.

    Example:
        >>> decide([[0.3, 0.4], []], (4, 16), rung=0, step=4, value=0.2, divisor=4)
        Decision(action='train', rung=1, entered=range(0, 1))
        >>> decide([[0.3, 0.4], []], (4, 16), rung=0, step=4, value=0.5, divisor=4).action
        'stop'
    """
    for current in range(rung, len(lengths)):
        if step < lengths[current]:
            return Decision("train", current, range(rung, current))
        if current == len(lengths) - 1:
            return Decision("complete", current, range(rung, current + 1))
        if not continues(rungs[current], value, divisor):
            return Decision("stop", current, range(rung, current + 1))
    raise AssertionError(f"rung {rung} of {len(lengths)}")


def continues(values: Collection[float], value: float, divisor: float) -> bool:
    """Return whether a trial is among the best of its rung: one of `divisor`, or the best.

    Args:
        values: The other scores in the rung.
        value: The score of the trial.
        divisor: One of so many trials continues.
    """
    return place(values, value) < max(int((len(values) + 1) / divisor), 1)


def place(values: Collection[float], value: float) -> int:
    """Return the place of a new score in a rung, from 0: before equal ones, but after all if it is not finite.

    Example:
        >>> place([0.1, 0.2, 0.2], 0.2), place([0.1, float("inf")], float("nan"))
        (1, 2)
    """
    value = score(value)
    return sum(other < value for other in values) if math.isfinite(value) else len(values)
