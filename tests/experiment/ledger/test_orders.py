"""Users pause, resume, cancel and kill experiments and trials from another terminal, and look at them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")

from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.orders import Orders, give_order, orders_of
from tests.experiment.stores import memory
from tests.experiment.work.project import MODEL, Project, until
from tests.experiment.work.test_worker import assert_as_torch

HOLD = "fit: {model: {init_args: {holds_at: [2]}}}\n"
TWO = f"{HOLD}searcher: {{name: random, metric: val_loss, max_trials: 2}}"


@pytest.mark.parametrize(
    ("experiment", "own", "found"),
    [("run", "cancel", "cancel"), ("pause", "cancel", "cancel"), ("pause", "run", "pause"), ("cancel", "kill", "kill")],
)
def test_the_order_that_ends_a_trial_earlier_holds(experiment, own, found):
    assert Orders(experiment, "", {3: own}).of(3) == found
    assert Orders(experiment, "", {3: own}).of(4) == experiment


def test_orders_are_those_of_the_ledger():
    ledger = Ledger(memory(), "experiment")
    assert orders_of(ledger) == Orders()
    give_order(ledger, "pause")
    give_order(ledger, "kill", 3)
    assert orders_of(ledger) == Orders("pause", "", {3: "kill"})
    give_order(ledger, "cancel", text="a reason")
    assert (orders_of(ledger).is_over, orders_of(ledger).text) == (True, "a reason")


@pytest.mark.processes
def test_a_paused_experiment_continues_bit_for_bit(tmp_path):
    project = Project(tmp_path, TWO)
    process = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2)
    assert "search is running" not in project.command("experiment", "resume", "search")
    assert "is paused: running trials" in project.command("experiment", "pause", "search")
    until(lambda: {one.state for one in project.trials()} == {"waiting"})
    assert json.loads(project.command("experiment", "describe", "search", "--json"))["state"] == "paused"
    assert process.poll() is None, "the worker waits"
    assert "continues" in project.command("experiment", "resume", "search")
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "paused: `lightlib experiment resume` continues it" in printed
    assert [one.attempts for one in project.trials()] == [2, 2]
    assert_as_torch(project, 2)


@pytest.mark.processes
@pytest.mark.parametrize("order", ["cancel", "kill"])
def test_an_experiment_ends_by_an_order(tmp_path, order):
    project = Project(tmp_path, f"{HOLD}searcher: {{name: random, metric: val_loss, max_trials: 6}}")
    process = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2)
    project.command("experiment", order, "search")
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 3
    assert "The experiment was canceled." in printed
    assert {one.state for one in project.trials()} == {"canceled"}
    saved = list(project.experiment.glob("trials/*/*/checkpoints/interrupted.ckpt"))
    assert len(saved) == (2 if order == "cancel" else 0)
    assert "canceled" in project.run(code=3)
    assert "nothing to cancel" in project.command("experiment", "cancel", "search")


@pytest.mark.processes
def test_a_trial_ends_by_an_order_and_the_rest_continue(tmp_path):
    project = Project(tmp_path, f"{HOLD}searcher: {{name: random, metric: val_loss, max_trials: 3}}")
    process = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2)
    project.command("experiment", "kill", "search/0")
    until(lambda: project.trials()[0].state == "canceled")
    project.let_go()
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "trial 0: canceled" in printed
    assert [(one.state, one.attempts) for one in project.trials()] == [
        ("canceled", 1),
        ("completed", 1),
        ("completed", 1),
    ]
    assert "There is no trial 9 in 'search'" in project.command("experiment", "cancel", "search/9", code=2)


@pytest.mark.processes
def test_looking_at_experiments(tmp_path):
    logs_more = MODEL.replace(
        "self.hparams.metric, torch",
        "'size', self.layer.weight.abs().sum())\n        self.log(self.hparams.metric, torch",
    )
    project = Project(tmp_path, "labels: [a, b]\nsearcher: {name: random, metric: val_loss, max_trials: 2}", logs_more)
    assert "no experiment" in project.command("experiment", "list")
    project.run()
    (listed,) = json.loads(project.command("experiment", "list", "--label", "a", "--json"))
    assert (listed["state"], listed["trials"], listed["labels"]) == ("completed", {"completed": 2}, ["a", "b"])
    assert "no experiment" in project.command("experiment", "list", "--label", "c")
    assert "experiments/search  completed  random" in project.command("experiment", "list")
    described = project.command("experiment", "describe", "search")
    assert "state:           completed" in described
    assert "seed:            7" in described
    best = json.loads(project.command("experiment", "best", "search", "--json", "--copy", "here/best.ckpt"))
    copied = torch.load(project.folder / "here" / "best.ckpt", weights_only=True)
    assert copied["global_step"] == best["step"]
    assert Path(best["checkpoint"]).read_bytes() == (project.folder / "here" / "best.ckpt").read_bytes()
    assert "this file exists" in project.command("experiment", "best", "search", "--copy", "here/best.ckpt", code=2)
    sizes = {one: project.messages(one, "validated") for one in (0, 1)}
    largest = max((one["metrics"]["size"], number, one["step"]) for number, all_ in sizes.items() for one in all_)
    by_size = json.loads(project.command("experiment", "best", "search", "--by", "size", "--largest", "--json"))
    assert (by_size["metric"], by_size["number"], by_size["step"]) == largest
    assert "No trial has validated 'siz'" in project.command("experiment", "best", "search", "--by", "siz", code=2)
    found = json.loads(project.command("experiment", "checkpoints", "search/1", "--json"))
    assert {one["trial"] for one in found} == {1}
    assert {Path(one["path"]).name for one in found} >= {"last.ckpt"}
    assert all(one["bytes"] == Path(one["path"]).stat().st_size for one in found)
    assert project.command("experiment", "checkpoints", "search").count(".ckpt") >= 3


@pytest.mark.processes
def test_more_trials_and_another_try(tmp_path):
    """Two trials fail; one is tried again after the fault is gone; then there are two more trials."""
    model = MODEL.replace(
        "step in self.hparams.fails_at", "step in self.hparams.fails_at and not (SEEN / 'repaired').exists()"
    )
    project = Project(
        tmp_path,
        """
        max_restarts: 0
        fit: {model: {init_args: {fails_at: [6]}}}
        searcher: {name: random, metric: val_loss, max_trials: 2}
        """,
        model,
    )
    project.run(code=1)
    assert [one.state for one in project.trials()] == ["errored", "errored"]
    (project.seen / "repaired").touch()
    assert "tried again" in project.command("experiment", "retry", "search/1")
    assert "is 2, and 2 is not more" in project.command("experiment", "continue", "search", "--max-trials", "2", code=2)
    assert "has 4 trials now" in project.command("experiment", "continue", "search", "--max-trials", "4")
    project.command("experiment", "work", "search", "--slots", "2")
    assert [(one.state, one.attempts) for one in project.trials()] == [
        ("errored", 1),
        ("completed", 2),
        ("completed", 1),
        ("completed", 1),
    ]
    assert "only a trial that has failed" in project.command("experiment", "retry", "search/2")
    assert "'search' is no trial" in project.command("experiment", "retry", "search", code=2)
    assert "is now 2 instead of 4" in project.run(code=2)
