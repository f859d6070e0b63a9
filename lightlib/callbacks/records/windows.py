"""Windows over the values of a metric, and the methods that make one number of those in a window."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

from lightlib.errors import check_int, check_word

Window = int | Literal["epoch", "global"]
Method = Literal["mean", "median", "min", "max", "latest"]


def check_window(owner: str, window: object) -> None:
    """Check that `window` is a number of values, ``"epoch"`` or ``"global"``.

    Raises:
        UnknownNameError: It is another string.
        ArgumentTypeError: It is neither a string nor an int.
        MisconfigurationException: It is below 1.

    Example:
        >>> check_window("History", "global")
    """
    if not isinstance(window, str):
        check_int(owner, "window", window, 1, meaning=', "epoch" or "global"', example=10)
    else:
        check_word(owner, "window", window, ("epoch", "global"))


def check_method(owner: str, method: object) -> None:
    """Check that `method` is one of :data:`METHODS`.

    Raises:
        UnknownNameError: It is not.
    """
    check_word(owner, "method", method, METHODS)


def smoothed(values: Sequence[float], method: Method) -> float:
    """Return one number for the values of a window; NaN if one of them is NaN, or if there are none.

    Args:
        values: The values, the oldest first.
        method: One of :data:`METHODS`.

    Example:
        >>> [smoothed([1.0, 5.0, 2.0, 8.0], method) for method in ("mean", "median", "min", "max", "latest")]
        [4.0, 3.5, 1.0, 8.0, 8.0]
    """
    if not values or (method != "latest" and any(map(math.isnan, values))):
        return math.nan
    return METHODS[method](values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _latest(values: Sequence[float]) -> float:
    return values[-1]


METHODS: dict[Method, Callable[[Sequence[float]], float]] = {
    "mean": _mean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "latest": _latest,
}
