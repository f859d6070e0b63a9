"""Groups curves into panels, places them along an axis, styles them, and summarises them."""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lightlib.command.plot.curves import Run
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.experiment.report.pages import COLORS

AXES = ("step", "epoch", "time")
HEAD = ["run", "metric", "last", "best", "at step"]

_STAGE = re.compile(
    r"(?:^|[_/.\- ]+)(?:(train|training|fit)|(val|valid|validation|eval)|(test|testing))(?=[_/.\- ]|$)", re.IGNORECASE
)
_TIMES = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
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
    """One curve in a panel; NaN in `y` leaves a gap, where a value is not finite (or beyond 1e300)."""

    run: int  # its position
    name: str
    stage: int  # 0 training, 1 validation, 2 test, 3 and more for further curves of one of them
    per_step: bool  # several values in an epoch: drawn thin, and smoothed
    x: list[float]
    y: list[float]


Panels = dict[str, list[Line]]


@dataclass(frozen=True)
class Trace:
    """Input of the drawing libraries: one curve with its style, or the markers of values that are not finite."""

    run: int
    label: str
    x: list[float]
    y: list[float]
    color: str
    dash: int = 1  # 0 dashed, 1 solid, 2 dotted, 3 dash-dotted, 4 dash-dot-dotted
    width: float = 1.8  # in points
    opacity: float = 1.0
    line: bool = True
    markers: bool = False


@dataclass(frozen=True)
class Row:
    """One metric of one run in the summary. `best` is None if the name shows no better direction."""

    run: str
    name: str
    points: list[tuple[int, float]]
    best: tuple[int, float] | None
    not_finite: list[int]  # steps

    def cells(self) -> list[str]:
        """Return the texts of the table's line; see :data:`HEAD`."""
        step, best = ("-", "-") if self.best is None else (str(self.best[0]), f"{self.best[1]:.6g}")
        return [self.run, self.name, f"{self.points[-1][1]:.6g}", best, step]


# Which curve belongs where


def base_name(name: str) -> str:
    """Return the name given to `self.log`: train_loss for train_loss_step and train_loss_epoch."""
    return _PER.sub("", name)


def family(name: str) -> str:
    """Return the name of the panel, such as loss for train_loss, val_loss and loss/val."""
    if _LEARNING_RATE.fullmatch(name) and not _NO_LEARNING_RATE.fullmatch(name):
        return LEARNING_RATE
    base = base_name(re.sub(r"/dataloader_idx_\d+$", "", name))
    stage = _STAGE.search(base)
    return (_STAGE.sub("", base, count=1).lstrip("_/.- ") if stage else "") or base


def _titles(names: Iterable[str]) -> dict[str, str]:
    """Return the panel of each metric; that of val_loss/clean is loss if there is such a panel: clean is a loader.

    Example:
        >>> _titles(["train_loss", "val_loss/clean", "val_acc/clean", "val/f1"])
        {'train_loss': 'loss', 'val_loss/clean': 'loss', 'val_acc/clean': 'acc', 'val/f1': 'f1'}
    """
    titles = {name: family(name) for name in names}
    bases = {name: name.rpartition("/")[0] for name in titles}
    inner = {name: family(base) for name, base in bases.items() if _stage(base) and family(base) != base}
    taken = {name.rpartition("/")[2] for name, title in inner.items() if title in titles.values()}
    return titles | {name: title for name, title in inner.items() if name.rpartition("/")[2] in taken}


def _stage(name: str) -> int:
    stage = _STAGE.search(name)
    return (stage.lastindex or 1) - 1 if stage else 0


def chosen(runs: Sequence[Run], patterns: Iterable[str], option: str = "--metrics") -> list[str]:
    """Return the names of the metrics that match any of the patterns, in the order of the logs.

    A pattern, with ``*`` and ``?``, matches the name of a metric with or without its ``_step`` or ``_epoch``; if there
    is none, the name of a panel.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.curves))
    matched: set[str] = set()
    patterns = list(patterns)
    for pattern in patterns:
        fits = [name for name in names if _fits(pattern, name) or _fits(pattern, base_name(name))]
        fits = fits or [name for name, title in _titles(names).items() if _fits(pattern, title)]
        if not fits:
            raise UnknownNameError(
                "metric", pattern, names, fix=f"{option} with one of these, or a pattern as 'val_*'."
            )
        matched.update(fits)
    return [name for name in names if name in matched or not patterns]


def _fits(pattern: str, name: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def make_panels(runs: Sequence[Run], names: Sequence[str], axis: str) -> tuple[Panels, str]:
    """Return the lines by the title of their panel, losses first and learning rates last, and the x-axis's name."""
    places = [_places(run, axis) for run in runs]
    unit, label = 1.0, axis
    if axis == "time":
        longest = max((max(positions.values(), default=0.0) for positions in places), default=0.0)
        unit, label = next(time for time in _TIMES if longest >= 2 * time[0] or time[0] == 1)
    panels: Panels = {}
    for name, title in _titles(names).items():
        lines = panels.setdefault(title, [])
        for number, (run, positions) in enumerate(zip(runs, places, strict=True)):
            points = run.points(name)
            if points:
                x = _positions([step for step, _ in points], positions, unit)
                y = [value if _is_finite(value) else math.nan for _, value in points]
                lines.append(Line(number, name, _stage(name), _is_per_step(name, run), x, y))
    staged = {title: _with_distinct_stages(lines) for title, lines in panels.items()}
    return dict(sorted(staged.items(), key=_order)), label


def _order(panel: tuple[str, list[Line]]) -> int:
    title, lines = panel
    if title == LEARNING_RATE:
        return 3
    pair = {line.stage for line in lines} >= {0, 1}
    return 0 if "loss" in title.lower() else 1 if pair else 2


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


def _is_per_step(name: str, run: Run) -> bool:
    if match := _PER.search(name):
        return match[1] == "step"
    if run.epoch_ends:
        return len(run.curves[name]) > len(run.epoch_ends) + 1  # validation before the first epoch is one more
    return _stage(name) == 0


# Along the x-axis


def _places(run: Run, axis: str) -> dict[int, float]:
    """Return the known positions on an axis by step, none for the axis of steps."""
    positions = {"step": {}, "epoch": _epochs(run), "time": run.seconds}[axis]
    if not positions and axis != "step" and run.curves:
        missing = "epochs" if axis == "epoch" else "times"
        raise MisconfigurationException(
            f"The logs of {run.name!r} in {run.path!r} have no {missing}, so '--x {axis}' cannot be drawn.",
            expected="a metric 'epoch'." if axis == "epoch" else "event files of TensorBoard, which have them.",
            fix="--x step",
        )
    return positions


def _positions(steps: list[int], known_positions: Mapping[int, float], unit: float) -> list[float]:
    """Return the positions of steps on the axis, linear between the known ones."""
    import numpy as np  # optional: numpy, only when curves are drawn

    if not known_positions:
        return [*steps]
    ends = sorted(known_positions)
    # A run resumed from an earlier step has later times there than at the steps it did not reach again.
    highest = np.maximum.accumulate([known_positions[step] for step in ends])
    positions: list[float] = (np.interp(steps, ends, highest) / unit).tolist()
    return positions


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


# Style


def traces(title: str, lines: Sequence[Line], several_runs: bool, smooth: float) -> Iterator[Trace]:
    """Yield the traces of a panel. Colours distinguish runs; in a picture of one run, training and validation."""
    dashed = several_runs and len({line.stage for line in lines}) > 1
    finite = [value for line in lines for value in line.y if not math.isnan(value)]
    for line in lines:
        color = COLORS[(line.run if several_runs else line.stage) % len(COLORS)]
        dash = min(line.stage, 4) if dashed and not line.per_step else 1
        is_gap = [True, *map(math.isnan, line.y), True]
        # A value between two gaps is on no line.
        alone = any(
            left and right and not gap for left, gap, right in zip(is_gap, is_gap[1:], is_gap[2:], strict=False)
        )
        markers = alone or (not line.per_step and len(line.x) <= _MOST_MARKERS)
        width = 0.9 if line.per_step else 1.8
        smooths = smooth > 0 and line.per_step and title != LEARNING_RATE
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
    """Return the running mean, in which each value counts `weight` times as much as the next one. NaN stays a gap."""
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
    for run, name in itertools.product(runs, names):
        if points := run.points(name):
            finite = [point for point in points if _is_finite(point[1])]
            better = _better(name)
            best = max(finite, key=lambda point: better * point[1]) if finite and better else None
            rows.append(Row(run.name, name, points, best, [step for step, value in points if not _is_finite(value)]))
    return rows


def _better(name: str) -> int:
    """Return -1 where a lower value is the better one, 1 where a higher one is, 0 where the name shows neither."""
    words = [word.lower() for word in re.split(r"[_/.\- ]+", name)]
    if family(name) == LEARNING_RATE:
        return 0
    if any(map(_LOWER.fullmatch, words)):
        return -1
    return 1 if any(map(_HIGHER.fullmatch, words)) else 0
