"""Parallel coordinates: an axis for each searched hyperparameter, and a line for each trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightlib.experiment.report.axes import Axis
from lightlib.experiment.report.pages import as_text

_BEST, _WORST = (8, 48, 107), (198, 219, 239)  # red, green and blue of the lines
_ABSENT, _BELOW = "none", -0.15  # the tick of trials without the hyperparameter, and its height


@dataclass(frozen=True)
class Scale:
    """One vertical axis.

    Attributes:
        heights: Of each trial: 0 is the lowest value, 1 the highest.
        ticks: Text by height.
    """

    heights: list[float]
    ticks: dict[float, str]


def scale(axis: Axis, values: Sequence[float | None]) -> Scale:
    """Return the heights of values; trials without one are below the rest."""
    is_log = axis.is_log and all(value is None or value > 0 for value in values)
    places = [value if value is None or not is_log else math.log10(value) for value in values]
    known_places = [place for place in places if place is not None] or [0.0]
    low, high = (0, len(axis.categories) - 1) if axis.categories else (min(known_places), max(known_places))

    def height(place: float | None) -> float:
        if place is None:
            return _BELOW
        return (place - low) / (high - low) if high > low else 0.5

    ticks = {height(place): text for place, text in _ticks(axis, low, high, is_log=is_log).items()}
    if None in places:
        ticks[_BELOW] = _ABSENT
    return Scale([height(place) for place in places], ticks)


def _ticks(axis: Axis, low: float, high: float, *, is_log: bool) -> dict[float, str]:
    """Return the text of each tick by its place."""
    if axis.categories:
        return {float(place): text for place, text in enumerate(axis.categories)}
    if is_log:
        powers = {float(power): f"{10.0**power:.4g}" for power in range(math.ceil(low), math.floor(high) + 1)}
        return powers if len(powers) > 1 else {place: f"{10.0**place:.3g}" for place in (low, high)}
    return {place: f"{place:.4g}" for place in (low, (low + high) / 2, high)}


def lines(
    axes: Sequence[Axis], scales: Sequence[Scale], names: Sequence[str], *, smaller_is_better: bool
) -> dict[str, list[dict[str, Any]]]:
    """Return the traces, the shapes and the annotations of plotly. The last axis is the metric; better is darker.

    plotly's own parallel coordinates compile code in the browser, which the policy of the page forbids.

    Args:
        axes: One for each scale.
        scales: From left to right.
        names: Of the trials, for hovering.
        smaller_is_better: Whether a low place on the last axis is better.
    """
    order = sorted(range(len(names)), key=lambda trial: scales[-1].heights[trial], reverse=smaller_is_better)
    quality = {trial: rank / max(len(names) - 1, 1) for rank, trial in enumerate(order)}  # one outlier changes little
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": list(range(len(scales))),
            "y": [axis_scale.heights[trial] for axis_scale in scales],
            "name": names[trial],
            "line": {"color": _color(quality[trial]), "width": 1.5},
            "hovertemplate": f"{names[trial]}<extra></extra>",
        }
        for trial in order
    ]
    bars = [
        {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": {"color": "#8a8a94", "width": 1}}
        for at in range(len(scales))
    ]
    texts = [_text(at, 1.1, f"<b>{as_text(axis.label)}</b>") for at, axis in enumerate(axes)]
    for at, axis_scale in enumerate(scales):
        texts += [_text(at, height, as_text(text)) for height, text in axis_scale.ticks.items()]
    return {"data": traces, "shapes": bars, "annotations": texts}


def _text(x: int, y: float, text: str) -> dict[str, Any]:
    return {
        "x": x,
        "y": y,
        "text": text,
        "showarrow": False,
        "bgcolor": "rgba(255,255,255,0.75)",
        "font": {"size": 11},
    }


def _color(quality: float) -> str:
    """Return the colour from the worst, 0, to the best, 1."""
    mixed = (round(bad + (good - bad) * quality) for good, bad in zip(_BEST, _WORST, strict=True))
    return f"rgb({','.join(map(str, mixed))})"
