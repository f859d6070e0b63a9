"""Results of an experiment: its trials, and the best one with its checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.file.masks import masked_at
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.orders import orders_of
from lightlib.experiment.ledger.snapshot import Snapshot, State
from lightlib.experiment.searchers.halving import Halving
from lightlib.experiment.searchers.pareto import front
from lightlib.experiment.searchers.scores import score
from lightlib.experiment.searchers.values import value_of
from lightlib.experiment.space import Space
from lightlib.experiment.store import Location, Store
from lightlib.experiment.work.checkpoints import saved_of
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.trial_source import source_of

LAST = "last.ckpt"
_LONGEST = 24  # characters of a value on a line


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        number: From 0.
        state: ``"waiting"``, ``"running"``, ``"paused"``, ``"completed"``, ``"stopped"``, ``"errored"``, ``"invalid"``
            or ``"canceled"``.
        attempts: How many of its attempts have begun.
        hparams: Its hyperparameters by dotted key, with ``***`` for secrets.
        metric: The best reported value of the searcher's metric; of several metrics, the last value of the first one.
            None if there is none.
        step: The batches after which it was reported.
        labels: Names of the log policies that its output matched.
        bracket: The number of its bracket from 0; None in a search without rungs.
        rungs: How many rungs of its bracket it has reached.
        metrics: The values after `step` of all metrics of the searcher, by name.
    """

    number: int
    state: State
    attempts: int
    hparams: Mapping[str, Any]
    metric: float | None
    step: int | None
    labels: tuple[str, ...] = ()
    bracket: int | None = None
    rungs: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


class Results:
    """The trials of an experiment, as they are in its ledger at this moment.

    Args:
        folder: Of the experiment.
        config: It.
        ledger: Of the experiment.

    Attributes:
        metric: That of the searcher; of several, the first.
        metrics: All of them.
        state: ``"running"``, ``"waiting"`` for a worker, ``"paused"`` or ``"canceled"`` by the user, ``"completed"`` or
            ``"errored"``.
        trials: In the order of their numbers.
        snapshot: Of the ledger, from which they are.
        space: Of the hyperparameters.
        source: Of the trials.
    """

    def __init__(self, folder: ExperimentFolder, config: ExperimentConfig, ledger: Ledger) -> None:
        self._folder, self._config, self._directions = folder, config, config.searcher.directions
        self.metrics = config.searcher.metrics
        self.metric = self.metrics[0]
        self.space = Space(config.hyperparameters)
        self.snapshot = snapshot = ledger.snapshot()
        self._orders = orders_of(ledger)
        rests = not snapshot.unfinished() and not snapshot.to_continue()
        self.source = source_of(config, self.space, 1, ledger)
        self._closed = rests and self.source.is_done(snapshot)
        self.trials = [self._trial(snapshot, number) for number in snapshot.chains]
        self.state = self._state()

    @property
    def states(self) -> Counter[State]:
        """How many trials are in each state."""
        return Counter(trial.state for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The trial with the best metric of those that completed or were stopped or paused at a rung, or None.

        Of equal ones it is the first. Of several metrics, it is the one of the front with the best first metric.
        """
        return min(self.front, key=lambda trial: self._scores(trial)[0], default=None)

    @property
    def front(self) -> list[Trial]:
        """The non-dominated trials: none is as good in every metric and better in one. They are in order.

        They completed, or were stopped or paused at a rung. NaN and the infinities are the worst values.
        """
        states = ("completed", "stopped", "paused")
        done = {trial.number: trial for trial in self.trials if trial.state in states and trial.metrics}
        return [done[number] for number in front({number: self._scores(trial) for number, trial in done.items()})]

    def _scores(self, trial: Trial) -> tuple[float, ...]:
        values = zip(trial.metrics.values(), self._directions, strict=True)
        return tuple(score(value, smaller) for value, smaller in values)

    def _state(self) -> str:
        if self._orders.is_over:
            return "canceled"
        if self._closed:
            return "errored" if self.best is None else "completed"
        if self.states["running"]:
            return "running"
        return "paused" if self._orders.experiment == "pause" else "waiting"

    def checkpoint(self, trial: Trial) -> Location | None:
        """Return the checkpoint of a trial's best validation; its last one if that was not kept, or None.

        Raises:
            LightlibError: The store of the checkpoints does not answer, or its keys are masked.
        """
        store = Store(self._folder.path, self._config)
        saved = saved_of(self._folder, store, trial.number)
        paths = [path for step, path in saved if step == trial.step and PurePath(path).name != LAST]
        last = [store.last(path, LAST) for path in reversed(self._folder.attempts(trial.number))]
        return next(iter(store.existing([*reversed(paths), *last])), None)

    def _trial(self, snapshot: Snapshot, number: int) -> Trial:
        chain = snapshot.chains[number]
        value = value_of(chain, self._directions)
        step, metrics = value or (None, ())
        begun = sum(attempt.state != "waiting" for attempt in chain)
        labels = tuple(dict.fromkeys(name for attempt in chain for name in attempt.attribute("labels") or ()))
        hparams = without_secrets(self.space.values(chain[0].params))
        state = snapshot.state_of(number)
        if state == "paused" and self._closed:  # it is among the best of no rung, and will not be
            state = "stopped"
        if state in ("waiting", "paused") and self._orders.of(number) in ("cancel", "kill"):
            state = "canceled"
        bracket, rungs = None, 0
        if isinstance(self.source, Halving):
            course = self.source.course(snapshot, number)
            bracket, rungs = course.bracket, course.rung + (course.action is not None)
        named = dict(zip(self.metrics, metrics, strict=False))
        return Trial(number, state, begun, hparams, named.get(self.metric), step, labels, bracket, rungs, metrics=named)


def counted(results: Results) -> str:
    """Return how many trials are in each state, on one line."""
    return ", ".join(f"{number} {state}" for state, number in sorted(results.states.items())) or "no trials"


def without_secrets(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters by dotted key with ``***`` for secrets.

    Example:
        >>> without_secrets({"lr": 0.1, "api_key": "abc"})
        {'lr': 0.1, 'api_key': '***'}
    """
    return {key: masked_at(f"hyperparameters.{key}", value) for key, value in hparams.items()}


def described(hparams: Mapping[str, Any]) -> str:
    """Return hyperparameters on one line, with short names and values, and without secrets.

    Example:
        >>> described({"model.init_args.lr": 0.123456, "name": "a"})
        'lr=0.1235, name=a'
    """
    names = short_names(hparams)
    return ", ".join(f"{names[key]}={_short(value)}" for key, value in without_secrets(hparams).items())


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return for each dotted key its shortest end that is the end of this key alone.

    Example:
        >>> short_names(["model.init_args.lr", "model.init_args.width", "data.width"])
        {'model.init_args.lr': 'lr', 'model.init_args.width': 'init_args.width', 'data.width': 'data.width'}
    """
    ends = {key: [key.split(".", at)[-1] for at in range(key.count("."), -1, -1)] for key in keys}
    often = Counter(end for all_ in ends.values() for end in all_)
    return {key: next((end for end in all_ if often[end] == 1), key) for key, all_ in ends.items()}


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
