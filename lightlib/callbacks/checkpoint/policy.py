"""Retention policy: the checkpoints of an experiment to keep, by three numbers, as a pure function."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Saved:
    """The properties of a checkpoint that decide whether it is kept.

    Attributes:
        run: The run that saved it.
        age: When; of two of one run the later one is greater.
        metric: Of a validation at that very moment. None, and NaN: there was none; it is never among the best.
    """

    run: str
    age: tuple[int, ...]
    metric: float | None = None

    @property
    def compared(self) -> bool:
        """Whether it can be among the best."""
        return self.metric is not None and not math.isnan(self.metric)


def retained(
    saved: Mapping[K, Saved], experiment_best: int, trial_best: int, trial_latest: int, mode: str = "min"
) -> set[K]:
    """Return the names of the checkpoints that are kept: the union of the three rules.

    Args:
        saved: All checkpoints of all runs, by name.
        experiment_best: How many of the best of all runs together.
        trial_best: How many of the best of each run.
        trial_latest: How many of the latest of each run, with or without a metric.
        mode: "min" when less of the metric is better, "max" when more is. Of equals the older is better.

    Example:
        >>> run = {1: Saved("a", (1,), 0.2), 2: Saved("a", (2,), 0.1), 3: Saved("a", (3,))}
        >>> sorted(retained(run, 0, trial_best=1, trial_latest=1))
        [2, 3]
    """
    sign = -1.0 if mode == "max" else 1.0

    def goodness(name: K) -> tuple[float, tuple[int, ...], str]:
        metric = saved[name].metric
        return sign * (math.inf if metric is None else metric), saved[name].age, saved[name].run

    best = sorted((name for name in saved if saved[name].compared), key=goodness)
    kept = set(best[:experiment_best])
    for run in {entry.run for entry in saved.values()}:
        latest = sorted((name for name in saved if saved[name].run == run), key=lambda name: saved[name].age)
        kept |= {*[name for name in best if saved[name].run == run][:trial_best], *latest[::-1][:trial_latest]}
    return kept
