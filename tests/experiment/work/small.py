"""The configuration of a small experiment: three trials of one hyperparameter."""

from __future__ import annotations

from lightlib.experiment.file import read

FILE = {
    "name": "a",
    "fit": {"trainer": {}},
    "hyperparameters": {"trainer.max_steps": {"type": "int", "minval": 1, "maxval": 3}},
    "searcher": {"name": "random", "metric": "val_loss", "max_trials": 3},
    "reproducibility": {"experiment_seed": 1},
}


def config(**changes):
    return read({**FILE, **changes})
