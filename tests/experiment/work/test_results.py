"""Results of an experiment: none without trials, and short names of hyperparameters."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.results import Results, short_names
from tests.experiment.work.small import config


def test_results_of_an_experiment_without_trials(tmp_path):
    with open_ledger(ExperimentFolder(tmp_path), config()) as ledger:
        results = Results(ExperimentFolder(tmp_path), config(), ledger)
    assert (results.trials, results.best) == ([], None)


def test_short_names_are_the_shortest_ends_of_one_key():
    found = short_names(["a.lr", "model.lr", "model.width", "lr"])
    assert found == {"a.lr": "a.lr", "model.lr": "model.lr", "model.width": "width", "lr": "lr"}
