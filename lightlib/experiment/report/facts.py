"""Facts about an experiment for its report, as plain data from its ledger and its folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lightlib import optional, report
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.attempt import OWNER, Attempt
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import Snapshot
from lightlib.experiment.report.axes import Axis, axes_of
from lightlib.experiment.searchers.halving import Halving
from lightlib.experiment.space import Space
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.logs import as_text, last
from lightlib.experiment.work.results import Results, Trial

LEAST_COMPLETED = 4  # trials, below which importances are noise
MOST_FAILURES = 50
_LINES, _LONGEST = 10, 400  # of the log of a failed attempt, and the characters of each


@dataclass(frozen=True)
class Row:
    """One trial.

    Attributes:
        trial: Its results.
        points: Batches and metric of each of its reports, in order.
        seconds: How long its attempts ran, in all; None before the first.
        ended: When its last attempt ended; None before.
        rungs: How many rungs it has reached, and how many its bracket has; None for a search without rungs.
    """

    trial: Trial
    points: tuple[tuple[int, float], ...]
    seconds: float | None
    ended: datetime | None
    rungs: tuple[int, int] | None

    @property
    def metric(self) -> float | None:
        """The best metric, if it is finite."""
        value = self.trial.metric
        return value if value is not None and is_drawn(value) else None

    def at(self, axis: Axis) -> float | None:
        """Return the place of its value on an axis."""
        return axis.at(self.trial.hparams)


@dataclass(frozen=True)
class Span:
    """The time of one attempt on a worker.

    Attributes:
        trial: The number of the trial.
        attempt: The number of the attempt.
        outcome: How it ended, or ``"running"``.
        worker: A name of the worker.
        lane: Which of the worker's rows it is drawn in, from 0: attempts at the same time have different ones.
        began: When it was claimed.
        ended: When it ended, or now.
    """

    trial: int
    attempt: int
    outcome: str
    worker: str
    lane: int
    began: datetime
    ended: datetime


@dataclass(frozen=True)
class Failure:
    """An attempt that failed or was lost, with the last lines of its log."""

    trial: int
    attempt: int
    outcome: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Rung:
    """A rung of a bracket: its length, and how many of the bracket's trials have reached it."""

    bracket: int
    length: int
    reached: int
    trials: int


@dataclass(frozen=True)
class Facts:
    """The facts of a report.

    Attributes:
        config: The experiment.
        results: Its trials.
        rows: The same with more of each, in the order of their numbers.
        axes: The searched hyperparameters.
        rungs: By bracket and length; empty for a search without rungs.
        spans: The attempts that have begun, by worker and time.
        failures: At most `MOST_FAILURES`, the newest first.
        failed: How many there are.
        importances: Of hyperparameters for the metric, for the first of several ones: by dotted key, the largest first;
            or why there are none.
        checkpoint: Of the best trial.
        made: When the facts were read.
    """

    config: ExperimentConfig
    results: Results
    rows: Sequence[Row]
    axes: Sequence[Axis]
    rungs: Sequence[Rung]
    spans: Sequence[Span]
    failures: Sequence[Failure]
    failed: int
    importances: dict[str, float] | str
    checkpoint: Path | str | None
    made: datetime

    @property
    def smaller_is_better(self) -> bool:
        """Whether less of the metric is better."""
        return self.config.searcher.directions[0]

    @property
    def steps(self) -> str:
        """The unit of reports: batches, or that of a program."""
        length = self.config.searcher.max_length
        return "steps" if length is not None and length.unit == "units" else "batches"


def is_drawn(value: float) -> bool:
    """Whether a figure can have a value; plotly draws none that is not finite, or so large that an axis is not."""
    return abs(value) <= 1e300  # False for NaN


def facts_of(folder: ExperimentFolder, config: ExperimentConfig, ledger: Ledger) -> Facts:
    """Return the facts of an experiment at this moment.

    Args:
        folder: Of the experiment.
        config: It, with its seed.
        ledger: Of the experiment.
    """
    results, now = Results(folder, config, ledger), datetime.now()  # noqa: DTZ005  as Optuna has times
    snapshot, space = results.snapshot, results.space
    halving = results.source if isinstance(results.source, Halving) else None
    rows = [_row(trial, snapshot, halving, now) for trial in results.trials]
    failed = [
        attempt for chain in snapshot.chains.values() for attempt in chain if attempt.ended_as in ("failed", "lost")
    ]
    failed.sort(key=lambda attempt: attempt.number, reverse=True)
    best = results.best
    return Facts(
        config=config,
        results=results,
        rows=rows,
        axes=axes_of(space),
        rungs=[] if halving is None else _rungs(results.trials, halving),
        spans=_spans(snapshot, now),
        failures=[_failure(folder, attempt) for attempt in failed[:MOST_FAILURES]],
        failed=len(failed),
        importances=_importances(ledger, rows, space),
        checkpoint=None if best is None else results.checkpoint(best),
        made=now,
    )


def _row(trial: Trial, snapshot: Snapshot, halving: Halving | None, now: datetime) -> Row:
    chain = snapshot.chains[trial.number]
    points: dict[int, float] = {}
    for attempt in chain:
        points.update(attempt.reports)
    times = [
        ((attempt.finished or now) - attempt.began).total_seconds() for attempt in chain if attempt.began is not None
    ]
    rungs = None
    if halving is not None:
        rungs = trial.rungs, len(halving.brackets[trial.bracket or 0].lengths)
    return Row(trial, tuple(sorted(points.items())), sum(times) if times else None, chain[-1].finished, rungs)


def _rungs(trials: Sequence[Trial], halving: Halving) -> list[Rung]:
    rungs_of_brackets = []
    for number, bracket in enumerate(halving.brackets):
        rungs_of_bracket = [trial.rungs for trial in trials if trial.bracket == number]
        for rung, length in enumerate(bracket.lengths):
            reached = sum(rungs > rung for rungs in rungs_of_bracket)
            rungs_of_brackets.append(Rung(number, length, reached, len(rungs_of_bracket)))
    return rungs_of_brackets


def _spans(snapshot: Snapshot, now: datetime) -> list[Span]:
    begun = [
        (attempt.began, attempt)
        for chain in snapshot.chains.values()
        for attempt in chain
        if attempt.began and attempt.attribute(OWNER)
    ]
    begun.sort(key=lambda pair: (pair[0], pair[1].number))
    lanes: dict[str, list[datetime]] = {}  # the end of the last span in each lane of a worker
    spans = []
    for began, attempt in begun:
        worker, ended = _worker(attempt.attribute(OWNER)), max(attempt.finished or now, began)
        ends = lanes.setdefault(worker, [])
        lane = next((number for number, end in enumerate(ends) if end <= began), len(ends))
        ends[lane : lane + 1] = [ended]
        spans.append(Span(attempt.trial, attempt.attempt, attempt.ended_as or "running", worker, lane, began, ended))
    order = list(lanes)
    return sorted(spans, key=lambda span: (order.index(span.worker), span.lane, span.began))


def _worker(owner: dict[str, Any]) -> str:
    names = [str(owner[key]) for key in ("host", "pid") if owner.get(key) is not None]
    return " ".join(names) or str(owner.get("name", "worker"))


def _failure(folder: ExperimentFolder, attempt: Attempt) -> Failure:
    log_lines = last(folder.attempt(attempt.trial, attempt.attempt), _LINES)
    lines = (report.without_passwords(as_text(line)) for line in log_lines)
    short = (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in lines)
    return Failure(attempt.trial, attempt.attempt, str(attempt.ended_as), tuple(short))


def _importances(ledger: Ledger, rows: Sequence[Row], space: Space) -> dict[str, float] | str:
    """Return how much of the first metric's variance over completed trials each hyperparameter explains, or why not."""
    completed = [row.metric for row in rows if row.trial.state == "completed" and row.metric is not None]
    if not space.searched:
        return "No hyperparameter is searched."
    if len(completed) < LEAST_COMPLETED:
        return f"They need {LEAST_COMPLETED} completed trials with a finite metric; there are {len(completed)}."
    if math.isclose(min(completed), max(completed)):
        return "All completed trials have the same metric."
    if not optional.is_installed("sklearn"):
        return f"They need scikit-learn, which is not installed: {optional.install('sklearn')}"
    from optuna import load_study  # optional: optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances  # optional: optuna

    study = load_study(study_name=ledger.name, storage=ledger.storage)
    evaluator = FanovaImportanceEvaluator(seed=0)
    by_name = get_param_importances(study, evaluator=evaluator, target=lambda trial: trial.values[0])
    return {key: float(value) for key, value in by_name.items()} or "No hyperparameter is in all completed trials."
