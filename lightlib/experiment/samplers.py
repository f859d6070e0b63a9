"""Samplers: the hyperparameters of new trials by Optuna's samplers, as functions of the ledger."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.snapshot import ENDED, Snapshot, State
from lightlib.experiment.searchers.pickles import check_optimizer
from lightlib.experiment.space import Space, trial_seed

CLASSES: Mapping[str, str] = {  # in optuna.samplers
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "qmc": "QMCSampler",
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
}
KEPT = "sampler"  # what a sampler has written, in `Entry.more`
_TRIES = 10  # of a sampler, to find a point that was not tried before; then random ones are tried
_RANDOM_TRIES = 100
_STATES: Mapping[State, TrialState] = {  # failed in the eyes of a sampler: the rest
    "completed": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "paused": TrialState.PRUNED,
    "running": TrialState.RUNNING,
    "waiting": TrialState.RUNNING,
}


def sampler_of(name: str, options: Mapping[str, Any], experiment_seed: int, trial: int, again: int = 0) -> BaseSampler:
    """Return a new sampler for one trial.

    Args:
        name: The searcher, a key of `CLASSES`.
        options: Arguments of Optuna's class.
        experiment_seed: The seed of the experiment.
        trial: The number of the trial.
        again: Greater than 0 for another point, in place of one that was tried before.
    """
    seed = trial_seed(experiment_seed, trial, again)
    if name == "qmc":  # all trials are points of one sequence; only keys that it leaves out are drawn for each
        independent = optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.QMCSampler(
            seed=trial_seed(experiment_seed, 0), independent_sampler=independent, **options
        )
    sampler: BaseSampler = getattr(optuna.samplers, CLASSES[name])(seed=seed, **options)
    return sampler


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna: it would repeat for each trial that a feature is experimental."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def new_study(sampler: BaseSampler, directions: Sequence[str], storage: InMemoryStorage) -> optuna.Study:
    """Return a study without trials."""
    named = [StudyDirection[direction.upper()] for direction in directions]
    return optuna.create_study(storage=storage, sampler=sampler, directions=named)


@dataclass(frozen=True)
class Sampled:
    """The first attempts of new trials, by a sampler that is built for each of them.

    The parameters of a trial follow from the seed of the experiment, its number and the trials before it in the ledger.
    So it does not matter which worker adds the trial, and a death in between repeats nothing. Some samplers count
    generations or points; what they write is kept with the trial. Invalid trials have the worst value. If they were
    left out, a sampler would draw them again and again.

    Args:
        name: The searcher, a key of `CLASSES`.
        space: Of the hyperparameters.
        seed: Of the experiment.
        options: Arguments of Optuna's class.
        directions: ``"minimize"`` or ``"maximize"`` for each metric.
        skips: Whether points that were tried are drawn again.
        batch: In a synchronous search, how many trials form a batch: they see the results of the batches before, and
            are added when all of those are there. Default: a trial sees all that the ledger has.
        first_rungs: In a synchronous search with rungs, the length of the first rung of each bracket: a trial sees only
            the metric of earlier ones there.
    """

    name: str
    space: Space
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    directions: Sequence[str] = ("minimize",)
    skips: bool = False
    batch: int | None = None
    first_rungs: Sequence[float] = ()

    def __call__(self, number: int, snapshot: Snapshot) -> Entry | None:
        """Return the first attempt of the trial with a number; None if the batch before has not ended."""
        start = number if self.batch is None else number // self.batch * self.batch
        if self.batch is not None and not all(_is_known(snapshot, trial) for trial in range(start)):
            return None
        history = [self._frozen(snapshot, trial, trial < start) for trial in range(number)]
        study_attributes: dict[str, Any] = {}  # attributes of the study
        for trial in range(number):
            study_attributes |= snapshot.chains[trial][0].more.get(KEPT, {}).get("study", {})
        tried = [self.space.values(past_trial.params) for past_trial in history] if self.skips else []
        drawn, study = self._draw(number, 0, history, study_attributes)
        for again in range(1, _TRIES):
            if self.space.values(drawn.params) not in tried:
                break
            drawn, study = self._draw(number, again, history, study)
        new = {key: value for key, value in study.items() if study_attributes.get(key) != value}
        kept = {"trial": drawn.system_attrs, "study": new}
        if self.space.values(drawn.params) in tried:
            drawn = self._random(number, tried) or drawn
        more = {KEPT: {key: value for key, value in kept.items() if value}}
        return Entry(number, more=more, params=drawn.params, distributions=drawn.distributions)

    def _draw(
        self, number: int, again: int, history: Sequence[FrozenTrial], attributes: Mapping[str, Any]
    ) -> tuple[FrozenTrial, dict[str, Any]]:
        """Return the trial that the sampler proposes, and the attributes of the study afterwards."""
        storage = InMemoryStorage()
        with quiet():
            sampler = sampler_of(self.name, self.options, self.seed, number, again)
            study = new_study(sampler, self.directions, storage)
            study.add_trials(history)
            study_id = storage.get_study_id_from_name(study.study_name)
            for key, value in attributes.items():
                storage.set_study_system_attr(study_id, key, value)
            self.space.suggest(study.ask())
        return storage.get_all_trials(study_id, deepcopy=False)[-1], dict(storage.get_study_system_attrs(study_id))

    def _random(self, number: int, tried: Sequence[Mapping[str, Any]]) -> FrozenTrial | None:
        """Return a random trial that was not tried; None if there is hardly one."""
        distributions = self.space.distributions()
        for again in range(_RANDOM_TRIES):
            numbers = self.space.draw_trial(self.seed, number, again)
            values = self.space.values(numbers)
            if values not in tried:
                params = {key: numbers[key] for key in distributions if key in values}
                return create_trial(
                    state=TrialState.RUNNING, params=params, distributions={key: distributions[key] for key in params}
                )
        return None

    def _frozen(self, snapshot: Snapshot, trial: int, is_known: bool) -> FrozenTrial:
        """Return a trial of the ledger as one trial of Optuna.

        Args:
            snapshot: The ledger.
            trial: The number of the trial.
            is_known: Whether its results count; else it is running, whatever the ledger has.
        """
        chain = snapshot.chains[trial]
        state, values = TrialState.RUNNING, None
        reports: dict[int, float] = {}
        if self.name == "qmc":  # reads only the parameters: the same points with all workers and kills
            state, values = TrialState.COMPLETE, [0.0 for _ in self.directions]
        elif is_known and snapshot.state_of(trial) == "invalid" and not self._reached(snapshot, trial):
            state = TrialState.COMPLETE
            values = [math.inf if direction == "minimize" else -math.inf for direction in self.directions]
        elif is_known and self.first_rungs:
            reports = self._reached(snapshot, trial)
            state = TrialState.PRUNED if reports else TrialState.FAIL
        elif is_known:
            state = _STATES.get(snapshot.state_of(trial), TrialState.FAIL)
            values = list(chain[-1].values) if state is TrialState.COMPLETE else None
            if len(self.directions) == 1:
                reports = {step: value for attempt in chain for step, value in attempt.reports.items()}
        attributes = chain[0].more.get(KEPT, {}).get("trial", {})
        if self.name == "cmaes":
            check_optimizer(attributes)
        return create_trial(
            state=state,
            values=values,
            params=dict(chain[0].params),
            distributions=dict(chain[0].distributions),
            intermediate_values=reports,
            system_attrs=dict(attributes),
        )

    def _reached(self, snapshot: Snapshot, trial: int) -> dict[int, float]:
        """Return the metric at the first rung by its length, in a synchronous search; empty before it is reached."""
        score = snapshot.attribute(trial, "score:0")
        if not self.first_rungs or score is None:
            return {}
        length = int(self.first_rungs[snapshot.last(trial).more["bracket"]])
        return {length: score if self.directions[0] == "minimize" else -score}


def _is_known(snapshot: Snapshot, trial: int) -> bool:
    """Whether a trial has a result: it has ended, or reached its first rung."""
    return snapshot.state_of(trial) in ENDED or snapshot.attribute(trial, "score:0") is not None
