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
    for trial in sorted(
        scores, key=lambda member: (tuple(scores[member]), member)
    ):  # none dominates one that comes before it
        if not any(_dominates(scores[member], scores[trial]) for member in best):
            best.append(trial)
    return sorted(best)


def _dominates(scores: Sequence[float], other: Sequence[float]) -> bool:
    return tuple(scores) != tuple(other) and all(a <= b for a, b in zip(scores, other, strict=True))
