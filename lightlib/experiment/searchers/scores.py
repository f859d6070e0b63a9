"""Scores: metric values in the order of a search, in which less is better and NaN is worst."""

from __future__ import annotations

import math

__all__ = ["WORST", "score"]

WORST = math.inf  # of a trial that failed, too


def score(value: float, smaller_is_better: bool = True) -> float:
    """Return a metric's value so that less is better. NaN and the infinities are the worst score.

    Args:
        value: The value of the metric.
        smaller_is_better: Whether less of the metric is better. Default: True.

    Example:
        >>> score(0.9, smaller_is_better=False), score(float("nan")), score(float("-inf"))
        (-0.9, inf, inf)
    """
    if not math.isfinite(value):
        return WORST
    return value if smaller_is_better else -value
