"""Pareto front: the non-dominated trials of a search with several metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["front"]


def front(scores: Mapping[int, Sequence[float]]) -> list[int]:
    """Return the non-dominated trials.

    A trial dominates another one if it is as good in every metric and better in one.

    Args:
        scores: For each trial, one score per metric, such that less is better.

    Returns:
        The trials in the order of their numbers.

    Example:
        >>> front({0: (0.1, 3.0), 1: (0.2, 3.0), 2: (0.3, 1.0)})
        [0, 2]
    """
    best: list[int] = []
    for trial in sorted(scores, key=lambda one: (tuple(scores[one]), one)):  # none dominates one that comes before it
        if not any(_dominates(scores[one], scores[trial]) for one in best):
            best.append(trial)
    return sorted(best)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return tuple(one) != tuple(other) and all(a <= b for a, b in zip(one, other, strict=True))
