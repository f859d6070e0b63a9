"""Simulations of searches with many trials."""

from __future__ import annotations

import random
import time

import pytest

from lightlib.experiment.searchers.brackets import Bracket, brackets
from lightlib.experiment.searchers.simulate import simulate


def random_metric(seed, trials=500):
    generator = random.Random(seed)
    values = [generator.random() for _ in range(trials)]
    return lambda trial, _: values[trial]


def test_stopping_trains_an_eighth_of_a_random_search():
    begin = time.process_time()  # of this process only: takes a hundredth of the bound
    units = [simulate(brackets(500, 64), random_metric(seed)).units for seed in range(20)]
    assert time.process_time() - begin < 20
    assert 3374 < sum(units) / 20 < 4300
    assert len(set(units)) > 10


@pytest.mark.parametrize("stop_once", [True, False])
def test_all_trials_are_tried_and_the_best_is_found(stop_once):
    metric = random_metric(1)
    found = simulate(brackets(500, 64), metric, stop_once=stop_once)
    assert sorted(found.trained) == list(range(500))
    assert [len(rungs[0]) for rungs in found.rungs] == [344, 114, 42]
    assert set(found.trained.values()) == {1, 4, 16, 64}
    best = min(range(500), key=lambda trial: metric(trial, 0))
    assert found.trained[best] == 64
    again = simulate(brackets(500, 64), metric, stop_once=stop_once)
    assert again == found


@pytest.mark.parametrize("stop_once", [True, False])
@pytest.mark.parametrize("concurrent", [1, 2, 5, 100])
def test_no_more_trials_train_at_once_than_allowed(stop_once, concurrent):
    bracket = Bracket((2, 4, 8), 30, concurrent)
    found = simulate([bracket], random_metric(0), divisor=2, stop_once=stop_once)
    assert found.units / concurrent <= found.duration <= found.units
    if concurrent == 1:
        assert found.duration == found.units


def test_brackets_train_at_the_same_time():
    found = simulate([Bracket((10,), 2, 1), Bracket((10,), 2, 1)], lambda *_: 0.5)
    assert (found.duration, found.units) == (20, 40)


def test_the_metric_receives_the_length():
    asked = []
    simulate([Bracket((1, 4), 2, 1)], lambda trial, length: asked.append((trial, length)) or trial)
    assert asked == [(0, 1), (0, 4), (1, 1)]


def test_rungs_of_the_same_length_are_passed_at_once():
    asked = []
    found = simulate([Bracket((1, 1, 4), 1, 1)], lambda _, length: asked.append(length) or 0.5)
    assert asked == [1, 4]
    assert found.trained == {0: 4}
    assert simulate([Bracket((1, 1, 4), 16, 1)], lambda trial, _: trial, stop_once=False).trained[0] == 4
