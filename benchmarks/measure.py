"""Sizes of the benchmarks, rows of measured values, and targets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

__all__ = ["FULL", "QUICK", "Result", "Row", "Size", "Target", "load"]


@dataclass(frozen=True)
class Size:
    """Number of measurements, and length of each.

    Attributes:
        rounds: Number of measurements of tiny steps, in turns.
        fewer_rounds: Number of measurements of everything that takes longer.
        steps: Steps per measurement of a tiny model.
        warm_up: Steps before the clock starts.
        counted: Steps whose calls are counted.
        large_steps: Steps per measurement of the models of `end_to_end`.
        processes: Number of processes started per import and per start of a run.
        all_imports: Whether all imports are measured, or only lightlib's and Lightning's.
    """

    rounds: int
    fewer_rounds: int
    steps: int
    warm_up: int
    counted: int
    large_steps: int
    processes: int
    all_imports: bool


FULL = Size(
    rounds=15, fewer_rounds=7, steps=1000, warm_up=100, counted=200, large_steps=100, processes=3, all_imports=True
)
QUICK = Size(
    rounds=2, fewer_rounds=1, steps=300, warm_up=50, counted=50, large_steps=20, processes=1, all_imports=False
)


@dataclass(frozen=True)
class Row:
    """A quantity that was measured several times.

    Attributes:
        what, who: What was measured, and of which framework.
        values: One per round; empty when `who` is not installed or failed.
        unit: Of the values.
        note: Shown in place of the numbers that there are not.
    """

    what: str
    who: str
    values: Sequence[float]
    unit: str
    note: str = ""

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> tuple[float, float, float]:
        """The least value and the two quartiles."""
        if len(self.values) == 1:
            return (self.values[0],) * 3
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return min(self.values), low, high


@dataclass(frozen=True)
class Target:
    """A promise about a number: it is at most `limit`."""

    what: str
    value: float
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value <= self.limit


Result = Row | Target


def load() -> str:
    """How busy the machine is: the average number of running processes in the last minute."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"
