"""Trials of a sampler: in a ledger, and in a plain loop of Optuna."""

from __future__ import annotations

import hashlib
import warnings

import optuna

from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.samplers import Sampled
from lightlib.experiment.space import Space
from tests.experiment.stores import memory

CLASSES = {
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "qmc": "QMCSampler",
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
}
SEED = 5
PLANE = {axis: {"type": "double", "minval": -1, "maxval": 2} for axis in "xy"}
MIXED = {
    "depth": {"type": "int", "minval": 1, "maxval": 9, "step": 2},
    "kind": {"type": "categorical", "vals": ["a", ["b"], None]},
    "lr": {"type": "log", "minval": -4, "maxval": 0},
    "seed": 3,
}


def bowl(values):
    return (values["x"] - 0.3) ** 2 + 2 * (values["y"] + 0.4) ** 2


def bumpy(values):
    kinds = {"a": 0.0, "['b']": 0.5, "None": 1.0}
    return abs(values["lr"] - 0.02) + abs(values["depth"] - 5) / 9 + kinds[str(values["kind"])]


def seed_of(trial, experiment_seed=SEED):
    """The first 31 bits of a hash of the seed and the trial."""
    return int.from_bytes(hashlib.sha256(f"{experiment_seed}/{trial}".encode()).digest()[:4], "big") >> 1


def sampler(name, trial, options, experiment_seed=SEED):
    """The sampler of a trial, by Optuna's classes alone."""
    found = getattr(optuna.samplers, CLASSES[name])
    if name == "qmc":
        rest = optuna.samplers.RandomSampler(seed=seed_of(trial, experiment_seed))
        return found(seed=seed_of(0, experiment_seed), independent_sampler=rest, **options)
    return found(seed=seed_of(trial, experiment_seed), **options)


class PlainLoop:
    """A study of Optuna with a sampler that is built for each trial."""

    def __init__(self, name, options, directions=("minimize",), experiment_seed=SEED):
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.name, self.options, self.seed, self.trials = name, options, experiment_seed, []
        self.study = optuna.create_study(directions=directions)

    def ask(self, suggest):
        self.study.sampler = sampler(self.name, len(self.trials), self.options, self.seed)
        trial = self.study.ask()
        self.trials.append(trial)
        return suggest(trial)


def plane(trial):
    return {axis: trial.suggest_float(axis, -1, 2) for axis in "xy"}


def mixed(trial):
    depth, kind = trial.suggest_int("depth", 1, 9, step=2), trial.suggest_categorical("kind", range(3))
    lr = 10 ** trial.suggest_float("lr", -4, 0)
    return {"depth": depth, "kind": ["a", ["b"], None][kind], "lr": lr, "seed": 3}


def ledger_of(directions=("minimize",)):
    return Ledger(memory(), "experiment", directions)


def add(ledger, new, number):
    """Add the trial with a number, and claim it."""
    ledger.add(new(number, ledger.snapshot()))
    attempt = ledger.snapshot().last(number)
    assert ledger.claim(attempt, {"name": "one"})
    return attempt


def searched(name, tree, function, trials, options=(), **settings):
    """Return the values of trials that one worker runs, and their results."""
    space = Space(tree)
    ledger, new = ledger_of(), Sampled(name, space, SEED, dict(options), **settings)
    found = []
    for number in range(trials):
        attempt = add(ledger, new, number)
        found.append(space.values(attempt.params))
        ledger.end(attempt, "completed", function(found[-1]))
    return found, [function(one) for one in found]
