"""Samplers that cannot work are refused before a trial is added, with a replacement."""

from __future__ import annotations

import pytest

from lightlib import optional

pytest.importorskip("optuna")

import optuna

from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file import read
from lightlib.experiment.searchers.halving import Halving
from lightlib.experiment.space import Space
from lightlib.experiment.work.trial_source import check_source, source_of

LR = {"type": "log", "minval": -4, "maxval": -1}
TWO = {"lr": LR, "width": {"type": "int", "minval": 1, "maxval": 9}}


def experiment(hyperparameters=TWO, **searcher):
    return read(
        {
            "name": "a",
            "fit": {"trainer": {}},
            "hyperparameters": hyperparameters,
            "searcher": {"metric": "loss", "max_trials": 8, **searcher},
            "reproducibility": {"experiment_seed": 3},
        }
    )


def refused(hyperparameters=TWO, **searcher):
    config = experiment(hyperparameters, **searcher)
    with pytest.raises(ConfigError) as caught:
        check_source(config, Space(config.hyperparameters), 2)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"n_startup_trial": 3},
            ("'searcher.options.n_startup_trial' is not a key of the options of tpe.", "mean 'n_startup_trials'?"),
        ),
        ({"seed": 3}, ("is not an option: each trial has a seed", "Fix: reproducibility.experiment_seed: 3")),
        ({"gamma": 3}, ("'searcher.options.gamma' takes an object of Python.", "n_ei_candidates", "Fix: delete it.")),
        (
            {"n_startup_trials": "ten"},
            ("'searcher.options.n_startup_trials' is 'ten' (str).", "int; the default is 10.", "n_startup_trials: 10"),
        ),
        ({"n_startup_trials": True}, ("is True (bool).", "int; the default is 10.")),
        ({"group": True, "multivariate": False}, ("``group`` option can only be enabled",)),
        ({"n_ei_candidates": 0}, (f"'searcher.options' does not work with Optuna {optuna.__version__}: ",)),
    ],
)
def test_options_of_tpe(options, parts):
    text = refused(name="tpe", options=options)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    ("searcher", "parts"),
    [
        (
            {"name": "nsga2", "options": {"population_size": 1}},
            ("'searcher.options.population_size' does not work", "greater than or equal to 2."),
        ),
        ({"name": "nsga3", "options": {"mutation_prob": 2.5}}, ("'searcher.options.mutation_prob' does not work",)),
        ({"name": "nsga2", "options": {"crossover": "sbx"}}, ("takes an object of Python.",)),
    ],
)
def test_values_that_optuna_refuses(searcher, parts):
    text = refused(**searcher)
    assert all(part in text for part in parts), text


def test_a_sequence_that_optuna_does_not_have():
    pytest.importorskip("scipy")
    assert "'searcher.options.qmc_type' does not work" in refused(name="qmc", options={"qmc_type": "lattice"})


@pytest.mark.parametrize(
    ("tree", "parts"),
    [
        ({**TWO, "kind": {"type": "categorical", "vals": [1, 2]}}, ("is 'cmaes', and kind has categories", "tpe")),
        ({"lr": LR, "width": 3}, ("and only lr has several values", "at least two hyperparameters")),
        ({"lr": 3}, ("all hyperparameters are constants", "hyperparameters: {lr: ")),
    ],
)
def test_spaces_that_do_not_fit(monkeypatch, tree, parts):
    monkeypatch.setattr(optional, "is_installed", lambda module: True)
    text = refused(tree, name="cmaes")
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("gp", "which needs scipy and torch.", "pip install 'scipy>=1.10' torch"),
        ("cmaes", "which needs cmaes.", "pip install 'cmaes>=0.12'"),
        ("qmc", "which needs scipy.", "pip install 'scipy>=1.10'"),
    ],
)
def test_packages_that_are_missing(monkeypatch, name, what, fix):
    monkeypatch.setattr(optional, "is_installed", lambda module: False)
    text = refused(name=name)
    assert f"'searcher.name' is {name!r}, {what}" in text
    assert f"Fix: {fix}" in text


def test_batches_of_unknown_size():
    assert "max_concurrent_trials is 0" in refused(name="tpe", synchronous=True, max_concurrent_trials=0)


def test_batches_with_rungs_that_a_sampler_does_not_read():
    text = refused(name="nsga2", synchronous=True, stopping={"divisor": 2}, max_length={"epochs": 8})
    assert "nsga2 learns only from trials that have completed" in text


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc", "nsga2", "nsga3"])
def test_right_ones_are_accepted(name):
    for package in {"gp": ("scipy",), "cmaes": ("cmaes",), "qmc": ("scipy",)}.get(name, ()):
        pytest.importorskip(package)
    config = experiment(name=name)
    check_source(config, Space(config.hyperparameters), 2)
    if name in ("tpe", "nsga2", "nsga3"):
        config = experiment(name=name, metric=["a", "b"], smaller_is_better=[True, False])
        check_source(config, Space(config.hyperparameters), 2)


def test_stopping_has_the_brackets_of_adaptive_asha():
    rules = {"mode": "conservative", "divisor": 3, "max_rungs": 3, "stop_once": False}
    length = {"epochs": 9}
    sampled = experiment(name="tpe", stopping=rules, max_length=length)
    asha = experiment(name="adaptive_asha", **rules, max_length=length)
    one, other = (source_of(config, Space(config.hyperparameters), 2) for config in (sampled, asha))
    assert isinstance(one, Halving)
    assert isinstance(other, Halving)
    assert one.brackets == other.brackets
    assert len(one.brackets) == 2
    timed = experiment(name="tpe", stopping={"time_metric": "units", "max_time": 16})
    source = source_of(timed, Space(timed.hyperparameters), 2)
    assert isinstance(source, Halving)
    assert {bracket.lengths[-1] for bracket in source.brackets} == {16}
