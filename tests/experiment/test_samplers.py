"""Samplers draw from the ledger the same trials as Optuna in a plain loop."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("optuna")

import optuna

from lightlib.errors import MisconfigurationException
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.storage import open_storage
from lightlib.experiment.samplers import Sampled
from lightlib.experiment.searchers.pickles import check_optimizer
from lightlib.experiment.space import Space
from tests.experiment.searchers.sampling import (
    CLASSES,
    MIXED,
    PLANE,
    SEED,
    PlainLoop,
    add,
    bowl,
    bumpy,
    ledger_of,
    mixed,
    plane,
    searched,
)

NEEDED = {"gp": ("scipy", "torch"), "cmaes": ("cmaes",), "qmc": ("scipy",)}
SMALL = {"tpe": {"n_startup_trials": 4}, "nsga2": {"population_size": 4}, "nsga3": {"population_size": 4}}


@pytest.fixture(params=CLASSES)
def name(request):
    for package in NEEDED.get(request.param, ()):
        pytest.importorskip(package)
    return request.param


def test_a_plain_loop_of_optuna_has_the_same_trials(name):
    trials = 13 if name == "gp" else 30
    loop, wanted = PlainLoop(name, SMALL.get(name, {})), []
    for _ in range(trials):
        wanted.append(loop.ask(plane))
        loop.study.tell(loop.trials[-1], bowl(wanted[-1]))
    assert searched(name, PLANE, bowl, trials, SMALL.get(name, {}))[0] == wanted


@pytest.mark.parametrize("name", ["tpe", "nsga2"])
def test_values_of_any_type_in_a_plain_loop(name):
    loop, wanted = PlainLoop(name, SMALL[name], ["maximize"]), []
    for _ in range(20):
        wanted.append(loop.ask(mixed))
        loop.study.tell(loop.trials[-1], bumpy(wanted[-1]))
    assert searched(name, MIXED, bumpy, 20, SMALL[name], directions=["maximize"])[0] == wanted


@pytest.mark.parametrize("name", [one for one in CLASSES if one != "qmc"])
def test_a_sampler_finds_a_better_value_than_chance(name):
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    trials = 18 if name == "gp" else 60
    space = Space(PLANE)
    chance = [min(bowl(space.sample_trial(seed, number)) for number in range(trials)) for seed in range(20)]
    assert min(searched(name, PLANE, bowl, trials, SMALL.get(name, {}))[1]) < statistics.mean(chance)


def test_points_of_a_sequence_are_spread_evenly():
    """After a first random point, Sobol's: of 64, each of 16 cells has 4."""
    pytest.importorskip("scipy")
    found, _ = searched("qmc", PLANE, bowl, 65)
    cells = Counter((int((one["x"] + 1) / 0.75), int((one["y"] + 1) / 0.75)) for one in found[1:])
    assert (len(cells), set(cells.values())) == (16, {4})


def test_the_same_search_again_has_the_same_trials(name):
    trials = 12 if name == "gp" else 15
    first, again = (searched(name, PLANE, bowl, trials, SMALL.get(name, {})) for _ in range(2))
    assert first == again


def test_trials_in_all_states_are_those_of_a_plain_loop():
    """Completed over two attempts, stopped, failed, invalid and running: Optuna sees one trial of each."""
    ends = ("completed", "stopped", "failed", "invalid", "running")
    options = {"n_startup_trials": 4}
    loop, space, ledger = PlainLoop("tpe", options), Space(PLANE), ledger_of()
    new = Sampled("tpe", space, SEED, options)
    for number in range(25):
        attempt, wanted, end = add(ledger, new, number), loop.ask(plane), ends[number % 5]
        assert space.values(attempt.params) == wanted, number
        trial = loop.trials[-1]
        if end in ("completed", "stopped"):
            for step in (4, 8):
                trial.report(bowl(wanted) + 1 / step, step)
                ledger.report(attempt, step, bowl(wanted) + 1 / step)
        if end == "completed":
            ledger.end(attempt, "interrupted")
            attempt = ledger.snapshot().last(number)
            assert ledger.claim(attempt, {"name": "two"})
            ledger.end(attempt, "completed", bowl(wanted) + 1 / 8)
            loop.study.tell(trial, bowl(wanted) + 1 / 8)
        elif end == "invalid":
            ledger.end(attempt, end)
            loop.study.tell(trial, math.inf)
        elif end != "running":
            ledger.end(attempt, end, again=False)
            state = optuna.trial.TrialState.PRUNED if end == "stopped" else optuna.trial.TrialState.FAIL
            loop.study.tell(trial, state=state)


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "nsga2"])
def test_an_invalid_region_is_left(name):
    """Half of the plane is invalid; fewer of the trials are."""
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    space, ledger = Space(PLANE), ledger_of()
    new, valid = Sampled(name, space, SEED, SMALL.get(name, {})), 0
    while valid < 15:
        attempt = add(ledger, new, ledger.snapshot().trials)
        values = space.values(attempt.params)
        if values["y"] > 0.5:
            ledger.end(attempt, "invalid")
        else:
            ledger.end(attempt, "completed", bowl(values))
            valid += 1
    assert ledger.snapshot().trials < 40


def test_two_metrics_of_a_plain_loop():
    directions, options = ["minimize", "maximize"], SMALL["nsga2"]
    loop, space, ledger = PlainLoop("nsga2", options, directions), Space(PLANE), ledger_of(directions)
    new = Sampled("nsga2", space, SEED, options, directions)
    for number in range(25):
        attempt, wanted = add(ledger, new, number), loop.ask(plane)
        assert space.values(attempt.params) == wanted, number
        values = [bowl(wanted), -abs(wanted["x"])]
        loop.study.tell(loop.trials[-1], values)
        ledger.end(attempt, "completed", values)


NEXT = """
import sys
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.storage import open_storage
from lightlib.experiment.samplers import Sampled
from lightlib.experiment.space import Space
from tests.experiment.searchers.sampling import PLANE, SEED
from tests.experiment.test_samplers import SMALL

name, folder, number = sys.argv[1:]
with open_storage(folder) as storage:
    ledger = Ledger(storage, "experiment")
    new = Sampled(name, Space(PLANE), SEED, SMALL.get(name, {}))
    print(new(int(number), ledger.snapshot()).params)
"""


@pytest.mark.processes
def test_another_process_draws_the_same_trial(name, tmp_path):
    """The ledger in a folder has all that a sampler needs."""
    trials = 11 if name == "gp" else 14
    space, new = Space(PLANE), Sampled(name, Space(PLANE), SEED, SMALL.get(name, {}))
    with open_storage(tmp_path) as storage:
        ledger = Ledger(storage, "experiment")
        for number in range(trials):
            attempt = add(ledger, new, number)
            ledger.end(attempt, "completed", bowl(space.values(attempt.params)))
        here = new(trials, ledger.snapshot()).params
    there = subprocess.run(
        [sys.executable, "-c", NEXT, name, str(tmp_path), str(trials)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == str(here)


def test_points_of_a_sequence_do_not_depend_on_the_results():
    pytest.importorskip("scipy")
    space, new = Space(PLANE), Sampled("qmc", Space(PLANE), SEED, {"scramble": True})
    found = []
    for order in ("completed", "failed", "invalid", "running"):
        ledger = ledger_of()
        for number in range(9):
            attempt = add(ledger, new, number)
            if order != "running":
                ledger.end(attempt, order, 1.0 if order == "completed" else None, again=False)
        found.append([space.values(chain[0].params) for chain in ledger.snapshot().chains.values()])
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("name", ["tpe", "nsga2", "qmc"])
def test_points_that_were_tried_are_skipped(name):
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    tree = {"depth": {"type": "int", "minval": 1, "maxval": 4}, "kind": {"type": "categorical", "vals": ["a", "b"]}}
    options = {"tpe": {"n_startup_trials": 2}, "nsga2": {"population_size": 2}}.get(name, {})
    found, _ = searched(name, tree, lambda values: values["depth"], 10, options, skips=True)
    points = {(depth, kind) for depth, kind in itertools.product(range(1, 5), "ab")}
    assert {(one["depth"], one["kind"]) for one in found[:8]} == points  # then there is none left
    repeated, _ = searched(name, tree, lambda values: values["depth"], 8, options)
    assert len({(one["depth"], one["kind"]) for one in repeated}) < 8


@pytest.mark.parametrize(("name", "options"), [("tpe", {"n_startup_trials": 5, "group": True}), ("nsga2", {})])
def test_keys_under_a_condition_are_there_when_it_is_met(name, options):
    tree = {
        "optimizer": {"type": "categorical", "vals": ["sgd", "adam"]},
        "momentum": {"type": "double", "minval": 0, "maxval": 1, "when": {"optimizer": "sgd"}},
    }
    if name == "tpe":
        options = {**options, "multivariate": True}
    found, _ = searched(name, tree, lambda values: values.get("momentum", 0.5), 20, options)
    assert {one["optimizer"] for one in found} == {"sgd", "adam"}
    assert all(("momentum" in one) == (one["optimizer"] == "sgd") for one in found)
    assert min(one.get("momentum", 1) for one in found) < 0.2


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_state_that_would_run_code_is_refused(tmp_path):
    text = pickle.dumps(Harmful(tmp_path / "ran")).hex()
    with pytest.raises(MisconfigurationException, match="which no optimizer contains"):
        check_optimizer({"cma:optimizer:1": text[20:], "cma:optimizer:0": text[:20], "cma:generation": 3})
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("options", [{}, {"use_separable_cma": True}, {"with_margin": True}, {"lr_adapt": True}])
def test_states_of_cmaes_are_accepted(options):
    pytest.importorskip("cmaes")
    found, _ = searched("cmaes", PLANE, bowl, 30, {"popsize": 4, **options})
    assert len(found) == 30
