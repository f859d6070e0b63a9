"""Which curves share a panel, along which axis, how smoothed and thinned, and their summary."""

from __future__ import annotations

import bisect
import fnmatch
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lightlib.command.plot.curves import Curve, Run
from lightlib.errors import MisconfigurationException, UnknownNameError

__all__ = ["AXES", "Line", "Panel", "Point", "Row", "chosen", "make_panels", "smoothed", "summary", "thinned"]

AXES = ("step", "epoch", "time")

_STAGES = {
    **dict.fromkeys(["train", "training", "fit"], 0),
    **dict.fromkeys(["val", "valid", "validation", "eval"], 1),
    **dict.fromkeys(["test", "testing"], 2),
}
_PER = re.compile(r"_(step|epoch)$")
_LEARNING_RATE = re.compile(r"(^|.*[-_/])(lr|learning_rate)([-_/].*)?", re.IGNORECASE)
_NO_LEARNING_RATE = re.compile(r".*(momentum|weight_decay)(/.*)?")
LEARNING_RATE = "learning rate"
_MOST = 1e300  # what is larger cannot be drawn: not even the length of such an axis is finite
_LOWER = re.compile("loss|error|err|mae|mse|rmse|mape|msle|perplexity|ppl|nll|wer|cer|fid|bpb|bpc|cost|kl")
_HIGHER = re.compile(
    "acc|accuracy|f1|auc|auroc|precision|recall|bleu|rouge|map|iou|miou|dice|jaccard|r2|psnr|ssim|reward|top1|top5"
)


@dataclass(frozen=True)
class Point:
    """One value, or those of one column of pixels when there are more points than pixels.

    Attributes:
        x: Where it is along the chosen axis; for several the one in the middle.
        value: The mean of the finite values (up to 1e300); None where there is none.
        low: The lowest of them.
        high: The highest.
        count: How many they are.
        broken: Whether one of them is not finite: the line has a gap here.
    """

    x: float
    value: float | None
    low: float
    high: float
    count: int
    broken: bool


@dataclass
class Line:
    """One curve in a panel.

    Attributes:
        run: The position of its run.
        name: The metric.
        stage: 0 for training, 1 for validation, 2 for test, 3 and more for a further curve of one of them.
        per_step: Whether it has several values in an epoch: it is drawn thin, and smoothed.
        points: Its points, in order.
    """

    run: int
    name: str
    stage: int
    per_step: bool
    points: list[tuple[float, float]]


@dataclass
class Panel:
    """One diagram."""

    title: str
    lines: list[Line] = field(default_factory=list)

    @property
    def smooths(self) -> bool:
        """Whether smoothing has a meaning: a learning rate is what it is."""
        return self.title != LEARNING_RATE


@dataclass(frozen=True)
class Row:
    """One metric of one run in the summary. `best` and `step` are None when nobody knows which end is the good one."""

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
    """Return what was given to `self.log`: train_loss for train_loss_step and train_loss_epoch."""
    return _PER.sub("", name)


def family(name: str) -> str:
    """Return the name of the panel: what train_loss, val_loss, loss/val and loss have in common.

    Example:
        >>> names = ("train_loss_step", "val/loss", "loss", "lr-Adam/pg1", "val_acc/dataloader_idx_0")
        >>> [family(name) for name in names]
        ['loss', 'loss', 'loss', 'learning rate', 'acc']
    """
    if _LEARNING_RATE.fullmatch(name) and not _NO_LEARNING_RATE.fullmatch(name):
        return LEARNING_RATE
    base = re.sub(r"/dataloader_idx_\d+$", "", base_name(name))
    found = _stage_token(base)
    if found is None:
        return base
    start, end = found
    return (base[:start].rstrip("_/.- ") + base[end:] if start else base[end:].lstrip("_/.- ")) or base


def _stage_token(name: str) -> tuple[int, int] | None:
    """Return where the word for the stage is in a name; None when there is no such word or nothing else."""
    for match in re.finditer(r"[^_/.\- ]+", name):
        if match.group().lower() in _STAGES and match.group() != name:
            return match.span()
    return None


def _stage(name: str) -> int:
    found = _stage_token(name)
    return _STAGES[name[found[0] : found[1]].lower()] if found else 0


def chosen(runs: Sequence[Run], patterns: Iterable[str]) -> list[str]:
    """Return the names of the metrics which any of the patterns means, in the order of the logs.

    A pattern is a name, with ``*`` and ``?``: of a metric, with or without its ``_step`` or ``_epoch``; or, where no
    metric is called so, of a panel.

    Raises:
        UnknownNameError: A pattern means nothing.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.curves))
    found: set[str] = set()
    patterns = list(patterns)
    for pattern in patterns:
        fits = [name for name in names if _fits(pattern, name) or _fits(pattern, base_name(name))]
        fits = fits or [name for name in names if _fits(pattern, family(name))]
        if not fits:
            raise UnknownNameError(
                "metric", pattern, names, fix="--metrics with one of these, or a pattern as 'val_*'."
            )
        found.update(fits)
    return [name for name in names if name in found or not patterns]


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
                points = [(place.at(step) / unit, value) for step, value in curve.points()]
                panel.lines.append(Line(number, name, _stage(name), _is_per_step(name, curve, run), points))
    for panel in panels.values():
        _tell_apart(panel)
    return sorted(panels.values(), key=_order), label


def _order(panel: Panel) -> int:
    if panel.title == LEARNING_RATE:
        return 3
    pair = {line.stage for line in panel.lines} >= {0, 1}
    return 0 if "loss" in panel.title.lower() else 1 if pair else 2


def _tell_apart(panel: Panel) -> None:
    """Give each metric of a panel a stage of its own, where its name does not; sort, so that validation is on top."""
    taken: dict[int, str] = {}
    for line in panel.lines:
        base = base_name(line.name)
        while taken.setdefault(line.stage, base) != base:
            line.stage = max(3, line.stage + 1)
    panel.lines.sort(key=lambda line: (line.run, not line.per_step, line.stage))


def _is_per_step(name: str, curve: Curve, run: Run) -> bool:
    if match := _PER.search(name):
        return match[1] == "step"
    if run.epoch_ends:
        return len(curve.values) > len(run.epoch_ends) + 1  # validation before the first epoch is one more
    return _stage(name) == 0


# Along the x-axis


class _Axis:
    """Where a step of a run is: a straight line between places that are known."""

    def __init__(self, run: Run, axis: str) -> None:
        known: dict[int, float] = {"step": {}, "epoch": _epochs(run), "time": run.seconds}[axis]
        self.steps = sorted(known)
        # A run that went back to an earlier step has later times there than at steps that it did not come to again.
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
        one, two = self.steps[right - 1], self.steps[right]
        part = min(max((step - one) / (two - one), 0.0), 1.0)
        return self.places[one] + part * (self.places[two] - self.places[one])


def _epochs(run: Run) -> dict[int, float]:
    """Return by step how many epochs were done. One that is unfinished is as long as the one before it."""
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


# Smoothing and thinning


def thinned(points: Sequence[tuple[float, float]], columns: int) -> list[Point]:
    """Return at most `columns` points that show all: each has the mean, the lowest and the highest of its column.

    Example:
        >>> [(point.x, point.low, point.high, point.count) for point in thinned([(0, 1), (1, 5), (9, 2)], 2)]
        [(1, 1, 5, 2), (9, 2, 2, 1)]
    """
    if len(points) <= columns:
        groups: Iterable[Sequence[tuple[float, float]]] = ([point] for point in points)
    else:
        first, width = points[0][0], (points[-1][0] - points[0][0]) / columns or 1.0
        by_column: dict[int, list[tuple[float, float]]] = {}
        for x, value in points:
            by_column.setdefault(min(columns - 1, int((x - first) / width)), []).append((x, value))
        groups = by_column.values()
    return [_together(group) for group in groups]


def _is_finite(value: float) -> bool:
    return abs(value) <= _MOST  # False for NaN as well


def _together(group: Sequence[tuple[float, float]]) -> Point:
    values = [value for _, value in group if _is_finite(value)]
    x = group[len(group) // 2][0]
    if not values:
        return Point(x, None, math.nan, math.nan, 0, broken=True)
    mean = math.fsum(value / len(values) for value in values)
    return Point(x, mean, min(values), max(values), len(values), len(values) < len(group))


def smoothed(points: Sequence[Point], weight: float) -> list[float | None]:
    """Return the running mean, in which each value counts `weight` times as much as the next one.

    Example:
        >>> smoothed(thinned([(0, 1.0), (1, 3.0)], 9), 0.5)
        [1.0, 2.3333333333333335]
    """
    result: list[float | None] = []
    total = counts = 0.0
    for point in points:
        if point.value is None:
            result.append(None)
            continue
        keep = weight**point.count
        total = total * keep + point.value * (1 - keep)
        counts = counts * keep + (1 - keep)
        result.append(total / counts if counts else point.value)
    return result


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
    """Return -1 where a lower value is the better one, 1 where a higher one is, 0 where the name does not say."""
    words = [word.lower() for word in re.split(r"[_/.\- ]+", name)]
    if family(name) == LEARNING_RATE:
        return 0
    if any(map(_LOWER.fullmatch, words)):
        return -1
    return 1 if any(map(_HIGHER.fullmatch, words)) else 0
