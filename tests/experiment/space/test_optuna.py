"""Spaces and Optuna: distributions, suggestions, and values of its numbers."""

from __future__ import annotations

import random
import sys

import pytest

from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.experiment.space import Space

TREE = {
    "batch": {"type": "log_int", "minval": 4, "maxval": 8, "base": 2, "step": 1},
    "dropout": {"type": "double", "minval": 0.1, "maxval": 0.55, "step": 0.1},
    "layers": {"type": "int", "minval": 1, "maxval": 8, "step": 3},
    "optimizer": {
        "lr": {"type": "log", "minval": -4, "maxval": -1},
        "name": {"type": "categorical", "vals": ["sgd", {"adam": [0.9]}, None]},
        "momentum": {"type": "double", "minval": 0, "maxval": 1, "when": {"optimizer.name": "sgd"}},
    },
    "seed": 3,
}
NUMBERS = {
    "batch": 5.0,
    "dropout": 0.3,
    "layers": 4,
    "optimizer.lr": -2.0,
    "optimizer.name": 0,
    "optimizer.momentum": 0.9,
}


def test_values_of_numbers():
    assert Space(TREE).values(NUMBERS) == {
        "batch": 32,
        "dropout": 0.3,
        "layers": 4,
        "optimizer.lr": 0.01,
        "optimizer.momentum": 0.9,
        "optimizer.name": "sgd",
        "seed": 3,
    }


def test_the_index_of_a_categorical_may_name_any_value():
    assert Space(TREE).values({**NUMBERS, "optimizer.name": 1})["optimizer.name"] == {"adam": [0.9]}


def test_a_number_of_an_absent_key_is_ignored_and_not_needed():
    space = Space(TREE)
    with_number = space.values({**NUMBERS, "optimizer.name": 2})
    without = space.values({**{k: n for k, n in NUMBERS.items() if k != "optimizer.momentum"}, "optimizer.name": 2})
    assert with_number == without
    assert "optimizer.momentum" not in without


def test_numbers_of_the_grid_and_of_draws_give_their_values():
    tree = {**TREE, "optimizer.lr": {"type": "log", "minval": -4, "maxval": -1, "count": 4}}
    tree["optimizer"] = {"name": TREE["optimizer"]["name"]}
    space = Space(tree)
    numbers = space.grid_numbers()
    assert [space.values(one) for one in numbers] == space.grid()
    assert numbers[0] == {"batch": 4.0, "dropout": 0.1, "layers": 1, "optimizer.lr": -4.0, "optimizer.name": 0}
    assert space.values(space.draw(random.Random(4))) == space.sample(random.Random(4))


def test_a_missing_number():
    with pytest.raises(MisconfigurationException) as caught:
        Space(TREE).values({"layers": 4, "batch": 4})
    assert str(caught.value) == (
        "Hyperparameter 'dropout' has no number; those with one are layers, batch.\n"
        "  Expected: a number for each hyperparameter that is not constant and whose `when` is met.\n"
        "  Fix: add one for 'dropout', or create a new experiment if the file has changed."
    )


def test_a_number_of_another_space():
    with pytest.raises(UnknownNameError) as caught:
        Space(TREE).values({**NUMBERS, "layer": 4})
    what, expected, fix = str(caught.value).split("\n")
    assert what == "Unknown hyperparameter 'layer'. Did you mean 'layers'?"
    assert expected.startswith("  Expected: one of 'batch', 'dropout'")
    assert fix == "  Fix: use a key of the file."


def test_an_index_of_another_space():
    with pytest.raises(MisconfigurationException) as caught:
        Space({"x": {"type": "categorical", "vals": [1, 2]}}).values({"x": 2})
    assert str(caught.value) == (
        "The index 2 of a categorical hyperparameter is out of range; its values are 1, 2.\n"
        "  Expected: an index from 0 to 1.\n"
        "  Fix: create a new experiment if the file has changed."
    )


@pytest.mark.parametrize("call", [Space.distributions, lambda space: space.suggest(None)])
def test_without_optuna(monkeypatch, call):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setitem(sys.modules, "optuna.distributions", None)
    with pytest.raises(MisconfigurationException) as caught:
        call(Space(TREE))
    assert str(caught.value) == (
        "This search needs the package optuna, which is not installed.\n"
        "  Expected: optuna>=4.3 in this environment.\n"
        "  Fix: pip install 'optuna>=4.3'"
    )


class Chosen:
    """A stand-in for a trial of Optuna that suggests known numbers."""

    def __init__(self, numbers):
        self.numbers, self.asked = numbers, []

    def _suggest(self, name, *args, **kwargs):
        self.asked.append((name, *args, *kwargs.values()))
        return self.numbers[name]

    suggest_int = suggest_float = suggest_categorical = _suggest


class Module:
    """A stand-in for `optuna.distributions`."""

    def __init__(self):
        for name in ("IntDistribution", "FloatDistribution"):
            setattr(self, name, self.kind(name, ("low", "high", "step")))
        self.CategoricalDistribution = self.kind("CategoricalDistribution", ("choices",))

    @staticmethod
    def kind(name, fields):
        def init(self, *args, step=None):
            self.__dict__ |= dict(zip(fields, [*args, step], strict=False))

        return type(name, (), {"__init__": init})


@pytest.mark.parametrize(("index", "momentum"), [(0, True), (1, False)])
def test_only_keys_that_are_there_are_suggested(monkeypatch, index, momentum):
    module = Module()
    monkeypatch.setitem(sys.modules, "optuna", type("Optuna", (), {"distributions": module}))
    monkeypatch.setitem(sys.modules, "optuna.distributions", module)
    trial = Chosen({**NUMBERS, "optimizer.name": index})
    values = Space(TREE).suggest(trial)
    assert values == Space(TREE).values(trial.numbers)
    asked = {name: rest for name, *rest in trial.asked}
    assert ("optimizer.momentum" in asked) == ("optimizer.momentum" in values) == momentum
    assert asked["batch"] == [4, 8.0, 1]
    assert asked["dropout"] == [0.1, 0.5, 0.1]
    assert asked["layers"] == [1, 7, 3]
    assert asked["optimizer.lr"] == [-4, -1, None]
    assert asked["optimizer.name"] == [range(3)]
    assert "seed" not in asked


class TestInstalled:
    @pytest.fixture
    def optuna(self):
        optuna = pytest.importorskip("optuna", reason="optuna is not installed")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna

    def test_distributions(self, optuna):
        of = optuna.distributions
        assert Space(TREE).distributions() == {
            "batch": of.FloatDistribution(4, 8, step=1),
            "dropout": of.FloatDistribution(0.1, 0.5, step=0.1),
            "layers": of.IntDistribution(1, 7, step=3),
            "optimizer.lr": of.FloatDistribution(-4, -1),
            "optimizer.momentum": of.FloatDistribution(0, 1),
            "optimizer.name": of.CategoricalDistribution([0, 1, 2]),
        }

    def test_a_study_suggests_values(self, optuna):
        space = Space(TREE)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=5))
        for _ in range(20):
            trial = study.ask()
            values = space.suggest(trial)
            assert space.values(trial.params) == values
            assert values["layers"] in (1, 4, 7)
            assert values["batch"] in (16, 32, 64, 128, 256)
            assert 1e-4 <= values["optimizer.lr"] <= 1e-1
            assert ("optimizer.momentum" in trial.params) == (values["optimizer.name"] == "sgd")
            study.tell(trial, values["optimizer.lr"])

    def test_all_points_of_a_grid_can_be_enqueued(self, optuna):
        tree = {"x": {"type": "double", "minval": 0, "maxval": 1, "count": 3}, "y": TREE["layers"]}
        space, study = Space(tree), optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for numbers in space.grid_numbers():
            study.enqueue_trial(numbers)
        asked = [study.ask(space.distributions()).params for _ in range(9)]
        assert [space.values(params) for params in asked] == space.grid()
