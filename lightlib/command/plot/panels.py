"""Groups curves into panels, places them along an axis, styles them, and summarises them."""

from __future__ import annotations

import bisect
import fnmatch
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lightlib.command.plot.curves import Curve, Run
from lightlib.errors import MisconfigurationException, UnknownNameError

__all__ = ["AXES", "COLORS", "Line", "Panel", "Row", "Trace", "chosen", "make_panels", "smoothed", "summary", "traces"]

AXES = ("step", "epoch", "time")
COLORS = ("#0072b2", "#d55e00", "#008a64", "#b5528a", "#8f6400", "#2b87b9", "#3d3d42", "#7a5cc0")

_STAGES = {
    **dict.fromkeys(["train", "training", "fit"], 0),
    **dict.fromkeys(["val", "valid", "validation", "eval"], 1),
    **dict.fromkeys(["test", "testing"], 2),
}
_PER = re.compile(r"_(step|epoch)$")
_LEARNING_RATE = re.compile(r"(^|.*[-_/])(lr|learning_rate)([-_/].*)?", re.IGNORECASE)
_NO_LEARNING_RATE = re.compile(r".*(momentum|weight_decay)(/.*)?")
LEARNING_RATE = "learning rate"
_MOST_MARKERS = 60  # of a line per epoch with more points, none has a marker
_MOST = 1e300  # the length of an axis with larger values is not finite
_LOWER = re.compile("loss|error|err|mae|mse|rmse|mape|msle|perplexity|ppl|nll|wer|cer|fid|bpb|bpc|cost|kl")
_HIGHER = re.compile(
    "acc|accuracy|f1|auc|auroc|precision|recall|bleu|rouge|map|iou|miou|dice|jaccard|r2|psnr|ssim|reward|top1|top5"
)


@dataclass
class Line:
    """One curve in a panel.

    Attributes:
        run: The position of its run.
        name: The metric.
        stage: 0 for training, 1 for validation, 2 for test, 3 and more for further curves of one of them.
        per_step: Whether it has several values in an epoch: it is drawn thin, and smoothed.
        x: Positions along the chosen axis, ascending.
        y: Values; NaN where a value is not finite (or beyond 1e300), which leaves a gap in the line.
    """

    run: int
    name: str
    stage: int
    per_step: bool
    x: list[float]
    y: list[float]

    def has_isolated_points(self) -> bool:
        """Return whether a value stands between two gaps, where no line can be drawn."""
        gaps = [True, *map(math.isnan, self.y), True]
        return any(left and not here and right for left, here, right in zip(gaps, gaps[1:], gaps[2:], strict=False))


@dataclass
class Panel:
    """One diagram."""

    title: str
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Trace:
    """Input of the drawing libraries: one curve with its style, or the markers of values that are not finite.

    Attributes:
        run: The position of its run.
        label: The metric, or ``"not finite"``.
        x: Positions along the axis.
        y: Values; NaN is a gap.
        color: As ``#rrggbb``.
        dash: 0 dashed, 1 solid, 2 dotted, 3 dash-dotted, 4 dash-dot-dotted.
        width: Of the line, in points.
        opacity: From 0 to 1.
        line: Whether the points are connected.
        markers: Whether each point has a marker.
    """

    run: int
    label: str
    x: list[float]
    y: list[float]
    color: str
    dash: int = 1
    width: float = 1.8
    opacity: float = 1.0
    line: bool = True
    markers: bool = False


@dataclass(frozen=True)
class Row:
    """One metric of one run in the summary. `best` and `step` are None if the name shows no better direction."""

    run: str
    name: str
    last: float
    best: float | None
    step: int | None
    points: int
    not_finite: int
    first_not_finite: int | None


# Which curve belongs where


def base_name(name: str) -> str:
    """Return the name given to `self.log`: train_loss for train_loss_step and train_loss_epoch."""
    return _PER.sub("", name)


def family(name: str) -> str:
    """Return the name of the panel, such as loss for train_loss, val_loss and loss/val.

    Example:
        >>> names = ("train_loss_step", "val/loss", "loss", "lr-Adam/pg1", "val_acc/dataloader_idx_0")
        >>> [family(name) for name in names]
        ['loss', 'loss', 'loss', 'learning rate', 'acc']
    """
    if _LEARNING_RATE.fullmatch(name) and not _NO_LEARNING_RATE.fullmatch(name):
        return LEARNING_RATE
    base = re.sub(r"/dataloader_idx_\d+$", "", base_name(name))
    token = _stage_token(base)
    if token is None:
        return base
    start, end = token
    return (base[:start].rstrip("_/.- ") + base[end:] if start else base[end:].lstrip("_/.- ")) or base


def _stage_token(name: str) -> tuple[int, int] | None:
    """Return the position of the stage in a name; None if it has no stage or nothing else."""
    for match in re.finditer(r"[^_/.\- ]+", name):
        if match.group().lower() in _STAGES and match.group() != name:
            return match.span()
    return None


def _stage(name: str) -> int:
    token = _stage_token(name)
    return _STAGES[name[slice(*token)].lower()] if token else 0


def chosen(runs: Sequence[Run], patterns: Iterable[str]) -> list[str]:
    """Return the names of the metrics that match any of the patterns, in the order of the logs.

    A pattern, with ``*`` and ``?``, matches the name of a metric with or without its ``_step`` or ``_epoch``; if there
    is none, the name of a panel.

    Raises:
        UnknownNameError: A pattern matches nothing.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.curves))
    matched: set[str] = set()
    patterns = list(patterns)
    for pattern in patterns:
        fits = [name for name in names if _fits(pattern, name) or _fits(pattern, base_name(name))]
        fits = fits or [name for name in names if _fits(pattern, family(name))]
        if not fits:
            raise UnknownNameError(
                "metric", pattern, names, fix="--metrics with one of these, or a pattern as 'val_*'."
            )
        matched.update(fits)
    return [name for name in names if name in matched or not patterns]


def _fits(pattern: str, name: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def make_panels(runs: Sequence[Run], names: Sequence[str], axis: str) -> tuple[list[Panel], str]:
    """Return the panels, losses first and learning rates last, and the name of their x-axis.

    Raises:
        MisconfigurationException: The logs of a run do not have that axis.
    """
    places = [_Axis(run, axis) for run in runs]
    unit, label = _time_unit(places) if axis == "time" else (1.0, "epoch" if axis == "epoch" else "step")
    panels: dict[str, Panel] = {}
    for name in names:
        panel = panels.setdefault(family(name), Panel(family(name)))
        for number, (run, place) in enumerate(zip(runs, places, strict=True)):
            curve = run.curves.get(name)
            if curve is not None:
                points = curve.points()
                x = [place.at(step) / unit for step, _ in points]
                y = [value if _is_finite(value) else math.nan for _, value in points]
                panel.lines.append(Line(number, name, _stage(name), _is_per_step(name, curve, run), x, y))
    staged = [Panel(panel.title, _with_distinct_stages(panel.lines)) for panel in panels.values()]
    return sorted(staged, key=_order), label


def _order(panel: Panel) -> int:
    if panel.title == LEARNING_RATE:
        return 3
    pair = {line.stage for line in panel.lines} >= {0, 1}
    return 0 if "loss" in panel.title.lower() else 1 if pair else 2


def _with_distinct_stages(lines: Iterable[Line]) -> list[Line]:
    """Return the lines of a panel with one stage per metric, sorted so that validation is drawn on top."""
    taken: dict[int, str] = {}
    staged = []
    for line in lines:
        base, stage = base_name(line.name), line.stage
        while taken.setdefault(stage, base) != base:
            stage = max(3, stage + 1)
        staged.append(replace(line, stage=stage))
    return sorted(staged, key=lambda line: (line.run, not line.per_step, line.stage))


def _is_per_step(name: str, curve: Curve, run: Run) -> bool:
    if match := _PER.search(name):
        return match[1] == "step"
    if run.epoch_ends:
        return len(curve.values) > len(run.epoch_ends) + 1  # validation before the first epoch is one more
    return _stage(name) == 0


# Along the x-axis


class _Axis:
    """Maps steps of a run to positions on the axis, linear between known positions."""

    def __init__(self, run: Run, axis: str) -> None:
        known: dict[int, float] = {"step": {}, "epoch": _epochs(run), "time": run.seconds}[axis]
        self.steps = sorted(known)
        # A run resumed from an earlier step has later times there than at the steps it did not reach again.
        highest = itertools.accumulate((known[step] for step in self.steps), max)
        self.places = dict(zip(self.steps, highest, strict=True))
        self.is_step = axis == "step"
        if not self.places and not self.is_step and run.curves:
            missing = "epochs" if axis == "epoch" else "times"
            raise MisconfigurationException(
                f"The logs of {run.name!r} in {run.path!r} have no {missing}, so '--x {axis}' cannot be drawn.",
                expected="a metric 'epoch'." if axis == "epoch" else "event files of TensorBoard, which have them.",
                fix="--x step",
            )

    def at(self, step: int) -> float:
        if self.is_step:
            return step
        right = min(max(bisect.bisect_left(self.steps, step), 1), len(self.steps) - 1)
        if right < 1:
            return self.places[self.steps[0]]
        before, after = self.steps[right - 1], self.steps[right]
        fraction = min(max((step - before) / (after - before), 0.0), 1.0)
        return self.places[before] + fraction * (self.places[after] - self.places[before])


def _epochs(run: Run) -> dict[int, float]:
    """Return the number of finished epochs by step. An unfinished epoch counts as long as the previous one."""
    done: dict[int, float] = {0: 0.0} if run.epoch_ends else {}
    length = 0.0
    ends = sorted(run.epoch_ends.items())
    for number, (epoch, step) in enumerate(ends):
        before = max(done)
        if step <= before:
            continue
        took = (step - before) / max(1.0, epoch + 1 - done[before])
        unfinished = number == len(ends) - 1 and took < length
        done[step] = epoch + took / length if unfinished else epoch + 1.0
        length = took
    return done


def _time_unit(places: Iterable[_Axis]) -> tuple[float, str]:
    longest = max((max(place.places.values(), default=0.0) for place in places), default=0.0)
    if longest >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if longest >= 120 else (1.0, "seconds")


# Style


def traces(panel: Panel, several_runs: bool, smooth: float) -> Iterator[Trace]:
    """Yield the traces of a panel. Colours distinguish runs; in a picture of one run, training and validation.

    Args:
        panel: Its lines.
        several_runs: Whether the picture shows more than one run.
        smooth: The weight of the running mean, from 0 to below 1. Learning rates and values per epoch have none.
    """
    dashed = several_runs and len({line.stage for line in panel.lines}) > 1
    finite = [value for line in panel.lines for value in line.y if not math.isnan(value)]
    for line in panel.lines:
        color = COLORS[(line.run if several_runs else line.stage) % len(COLORS)]
        dash = min(line.stage, 4) if dashed and not line.per_step else 1
        markers = line.has_isolated_points() or (not line.per_step and len(line.x) <= _MOST_MARKERS)
        width = 0.9 if line.per_step else 1.8
        smooths = smooth > 0 and line.per_step and panel.title != LEARNING_RATE
        opacity = 0.3 if smooths else 1.0
        yield Trace(line.run, line.name, line.x, line.y, color, dash, width, opacity, markers=markers)
        if smooths:
            yield Trace(line.run, f"{line.name} (smoothed)", line.x, smoothed(line.y, smooth), color, width=1.6)
        gaps = [x for x, value in zip(line.x, line.y, strict=True) if math.isnan(value)]
        if gaps:
            bottom = [min(finite, default=0.0)] * len(gaps)
            yield Trace(line.run, "not finite", gaps, bottom, color, line=False, markers=True)


def _is_finite(value: float) -> bool:
    return abs(value) <= _MOST  # False for NaN as well


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return the running mean, in which each value counts `weight` times as much as the next one. NaN stays a gap.

    Example:
        >>> smoothed([1.0, 3.0], 0.5)
        [1.0, 2.3333333333333335]
    """
    means: list[float] = []
    total = weights = 0.0
    for value in values:
        if not math.isnan(value):
            total = total * weight + value * (1 - weight)
            weights = weights * weight + (1 - weight)
        means.append(value if math.isnan(value) else total / weights)
    return means


# In numbers


def summary(runs: Sequence[Run], names: Sequence[str]) -> list[Row]:
    """Return the last and the best value of each metric in each run."""
    rows = []
    for run in runs:
        for name in names:
            if name in run.curves:
                points = run.curves[name].points()
                finite = [(step, value) for step, value in points if _is_finite(value)]
                odd = [step for step, value in points if not _is_finite(value)]
                better = _better(name)
                best: tuple[int, float] | None = None
                if finite and better:
                    best = (min if better < 0 else max)(finite, key=lambda point: point[1])
                rows.append(
                    Row(
                        run.name,
                        name,
                        points[-1][1],
                        best[1] if best else None,
                        best[0] if best else None,
                        len(points),
                        len(odd),
                        odd[0] if odd else None,
                    )
                )
    return rows


def _better(name: str) -> int:
    """Return -1 where a lower value is the better one, 1 where a higher one is, 0 where the name shows neither."""
    words = [word.lower() for word in re.split(r"[_/.\- ]+", name)]
    if family(name) == LEARNING_RATE:
        return 0
    if any(map(_LOWER.fullmatch, words)):
        return -1
    return 1 if any(map(_HIGHER.fullmatch, words)) else 0
