"""Trials are compared at rungs: they stop, pause and are promoted there, with the numbers of torch."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import torch

pytest.importorskip("optuna")

from lightlib.experiment.searchers.stopping import continues
from lightlib.experiment.space import trial_seed
from tests.experiment.work.project import MODEL, Project, trained, until

pytestmark = pytest.mark.processes
ASHA = "name: adaptive_asha, metric: val_loss, mode: aggressive, divisor: 2"
PAUSES = f"searcher: {{{ASHA}, max_trials: 6, max_length: {{epochs: 4}}, stop_once: false, max_concurrent_trials: 1}}"
HALVING = "name: halving, metric: val_loss, divisor: 2"
BATCH = "        x, y = batch\n"  # begins both steps
BUILD = "        self.layer ="
PROGRAM = """
from lightlib import InvalidHP, experiment

trial = experiment.current()
if trial.hparams["x"] > 0.9:
    raise InvalidHP("x is above 0.9")
saved = trial.checkpoint_dir / "step"
step = int(saved.read_text()) if saved.exists() else 0
while step < 9 and not trial.should_stop:
    step += 1
    saved.write_text(str(step))
    trial.report({report})
print("ended", step)
"""


def assert_as_torch(project, ends, rungs=()):
    """Each trial has bit for bit the weights of a plain loop of so many batches, which was never paused."""
    for one in project.trials():
        seed = trial_seed(7, one.number)
        weights, losses = trained(one.hparams["lr"], seed, 4, batches=ends[one.number], rungs=rungs)
        assert all(torch.equal(project.weights(one.number)[name], value) for name, value in weights.items())
        assert one.metric == min(losses)


def validated(project, trial):
    """The batches after which a trial was validated, in all its attempts."""
    return [one["step"] for one in project.messages(trial, "validated")]


def test_a_promoted_trial_has_the_weights_of_one_that_was_never_paused(tmp_path):
    project = Project(tmp_path, PAUSES)
    printed = project.run()
    found = project.trials()
    ends = {one.number: validated(project, one.number)[-1] for one in found}
    assert set(ends.values()) <= {4, 8, 16}
    assert_as_torch(project, ends)
    top = [one.number for one in found if one.state == "completed"]
    assert [number for number, end in ends.items() if end == 16] == top
    assert {one.state for one in found} == {"completed", "stopped"}
    assert max(one.attempts for one in found if one.number in top) > 1, "a promoted trial has completed"
    assert all(validated(project, number) == list(range(4, end + 1, 4)) for number, end in ends.items())
    assert f"{len(top)} completed, {6 - len(top)} stopped" in printed
    paused = ", ".join(str(number) for number in sorted(ends) if number not in top)
    assert f"\npaused at the end: trial {paused}; the search continues none of them\n" in printed
    assert project.run().count("running") == 0


def test_a_search_that_can_promote_no_trial_ends_with_a_message(tmp_path):
    """One of sixteen trials is promoted, and there are eleven."""
    search = "name: adaptive_asha, metric: val_loss, divisor: 16, bracket_rungs: [2], max_trials: 11, stop_once: false"
    project = Project(tmp_path, f"searcher: {{{search}, max_length: {{epochs: 16}}}}")
    printed = project.run()
    assert [validated(project, number)[-1] for number in range(11)] == [4] * 11
    numbers = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 …"
    assert f"\n11 stopped\npaused at the end: trial {numbers}; the search continues none of them\nbest: " in printed


def test_a_trial_that_is_not_among_the_best_stops_exactly_at_its_rung(tmp_path):
    """Rungs at batches 2, 5 and 10, which no epoch of four batches ends at; one trial after another."""
    project = Project(
        tmp_path,
        f"searcher: {{{ASHA}, max_trials: 8, max_rungs: 3, max_length: {{batches: 10}}, max_concurrent_trials: 1}}",
    )
    assert "paused at the end" not in project.run()
    lengths, rungs, ends = (2, 5, 10), ([], [], []), {}
    for one in project.trials():
        for rung, batches in enumerate(lengths):
            seed = trial_seed(7, one.number)
            loss = trained(one.hparams["lr"], seed, batches=batches, rungs=lengths)[1][-1]
            trains_on = continues(rungs[rung], loss, 2)
            rungs[rung].append(loss)
            ends[one.number] = batches
            if not trains_on:
                break
        assert one.state == ("completed" if ends[one.number] == 10 else "stopped")
    assert set(ends.values()) > {2, 10}
    assert_as_torch(project, ends, lengths)
    assert all(set(lengths) & set(range(1, end + 1)) <= set(validated(project, one)) for one, end in ends.items())


def test_a_kill_at_any_time_changes_nothing_of_a_synchronous_search(tmp_path):
    search = (
        "searcher: {name: halving, metric: val_loss, num_rungs: 3, divisor: 2, max_trials: 6, max_length: {epochs: 4}}"
    )
    whole, killed = Project(tmp_path / "whole", search), Project(tmp_path / "killed", search)
    whole.run()
    ends = {one.number: validated(whole, one.number)[-1] for one in whole.trials()}
    losses = {one: loss_of_epochs(whole, one) for one in ends}
    second = sorted(ends, key=lambda one: (losses[one][0], one))[:3]
    third = min(second, key=lambda one: (losses[one][1], one))
    assert ends == {one: 16 if one == third else 8 if one in second else 4 for one in ends}
    assert_as_torch(whole, ends)
    numbers = random.Random(5)
    for done in sorted(numbers.sample(range(sum(ends.values()) // 4), 4)):
        process = killed.start("experiment", "run", "search.yaml", "--slots", "2")
        until(lambda done=done: sum(len(validated(killed, one)) for one in ends) >= done)
        time.sleep(0.2 * numbers.random())
        process.kill()  # on a busy machine it may have ended by now
        process.communicate(timeout=300)
    printed = killed.run()
    assert [(one.state, one.metric, one.step) for one in killed.trials()] == [
        (one.state, one.metric, one.step) for one in whole.trials()
    ]
    assert_as_torch(killed, ends)
    assert f"best: trial {third}, val_loss" in printed


def loss_of_epochs(project, trial):
    (hparams,) = (one.hparams for one in project.trials() if one.number == trial)
    return trained(hparams["lr"], trial_seed(7, trial), 4)[1]


def test_two_processes_stop_and_pause_at_the_same_rung(tmp_path):
    """DDP with two ranks, of which one logs the metric; the rung is within an epoch of two batches."""
    logs_on_rank_0 = MODEL.replace("self.layer(x), y))", "self.layer(x), y), rank_zero_only=True)")
    for trials, stop_once in ((3, "true"), (2, "false")):
        project = Project(
            tmp_path / stop_once,
            f"""
            searcher: {{{ASHA}, max_trials: {trials}, max_rungs: 2, max_length: {{batches: 6}}, stop_once: {stop_once}}}
            """,
            logs_on_rank_0,
            slots=2,
        )
        project.run()
        found = project.trials()
        assert {one.state for one in found} == {"completed", "stopped"}
        assert {validated(project, one.number)[-1] for one in found if one.state == "stopped"} == {3}
        assert {validated(project, one.number)[-1] for one in found if one.state == "completed"} == {6}


def test_a_trial_that_is_interrupted_while_it_waits_asks_again(tmp_path):
    """The worker is frozen before it can decide, and killed after the trial has left its rung."""
    hold = MODEL.replace(
        f"{BATCH}        noise", f"        (SEEN / 'pid').write_text(str(os.getpid()))\n{BATCH}        noise"
    )
    search = PAUSES.replace("max_trials: 6", "max_trials: 2")
    project = Project(tmp_path, f"fit: {{model: {{init_args: {{holds_at: [2]}}}}}}\n{search}", hold)
    process = project.start("experiment", "run", "search.yaml", "--slots", "1")
    until(project.held)
    os.kill(process.pid, signal.SIGSTOP)
    project.let_go()
    until(lambda: project.messages(0, "rung"))
    os.kill(int((project.seen / "pid").read_text()), signal.SIGTERM)
    until(lambda: [one for one in project.messages(0, "checkpoint") if "interrupted" in one["path"]])
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    project.run()
    first, again = project.messages(0, "rung")[:2]
    assert first == again
    ends = {one.number: validated(project, one.number)[-1] for one in project.trials()}
    assert sorted(ends.values()) == [8, 16]
    assert_as_torch(project, ends)


@pytest.mark.parametrize("searcher", [ASHA, f"{ASHA}, stop_once: false", f"{HALVING}, num_rungs: 2"])
def test_a_trial_that_dies_before_its_first_checkpoint_trains_again(tmp_path, searcher):
    """Most die after the decision to stop or to pause: a trial that ends so has its weights all the same."""
    dies = "        if self.once('saves'):\n            os.kill(os.getpid(), 9)\n"
    model = MODEL.replace(
        "    def configure_optimizers",
        f"    def on_save_checkpoint(self, checkpoint):\n{dies}\n    def configure_optimizers",
    )
    more = "max_trials: 4, max_length: {epochs: 4}, max_concurrent_trials: 1"
    project = Project(tmp_path, f"searcher: {{{searcher}, {more}}}", model)
    project.run()
    found = project.trials()
    assert min(one.attempts for one in found) >= 2
    assert {one.state for one in found} == {"completed", "stopped"}
    assert_as_torch(project, {one.number: validated(project, one.number)[-1] for one in found})


def test_a_trial_that_fails_counts_as_the_worst_of_its_rung(tmp_path):
    project = Project(
        tmp_path,
        f"""
        max_restarts: 0
        hyperparameters: {{lr: {{type: log, minval: -3, maxval: -1}}, fails_at: [5]}}
        searcher: {{{ASHA}, max_trials: 4, max_rungs: 3, max_length: {{epochs: 4}}, stop_once: false}}
        """,
    )
    printed = project.run(code=0)
    found = project.trials()
    assert {one.state for one in found} == {"errored", "stopped"}
    assert sum(one.state == "errored" for one in found) >= 2
    assert all(one.metric is not None for one in found)
    assert "best: trial" in printed


def test_a_trial_that_ends_by_itself_is_completed(tmp_path):
    stops = MODEL.replace(
        f"{BATCH}        noise", f"        self.trainer.should_stop = step == 1\n{BATCH}        noise"
    )
    project = Project(tmp_path, PAUSES.replace("max_trials: 6", "max_trials: 2"), stops)
    project.run()
    assert [(one.state, one.attempts) for one in project.trials()] == [("completed", 1)] * 2


@pytest.mark.parametrize("where", ["__init__", "training_step", "validation_step"])
def test_hyperparameters_that_do_not_fit_are_replaced(tmp_path, where):
    places = {
        "__init__": BUILD,
        "training_step": f"{BATCH}        noise",
        "validation_step": f"{BATCH}        self.log",
    }
    lr = "lr" if where == "__init__" else "self.hparams.lr"
    check = f"        if not 0.003 < {lr} < 0.05:\n            raise L.InvalidHP('too far')\n"
    project = Project(
        tmp_path,
        "searcher: {name: random, metric: val_loss, max_trials: 4, max_length: {epochs: 1}}",
        MODEL.replace(places[where], check + places[where]),
    )
    printed = project.run()
    found = project.trials()
    assert [one.state for one in found if 0.003 < one.hparams["lr"] < 0.05] == ["completed"] * 4
    assert {one.state for one in found if not 0.003 < one.hparams["lr"] < 0.05} == {"invalid"}
    assert (printed.count(": invalid: too far"), len(found)) == (len(found) - 4, max(5, len(found)))


def test_in_a_grid_they_are_not_replaced_and_a_single_trial_has_failed(tmp_path):
    model = MODEL.replace(BUILD, f"        if lr > 0.05: raise L.InvalidHP\n{BUILD}")
    grid = Project(
        tmp_path / "grid",
        "hyperparameters: {lr: {type: categorical, vals: [0.1, 0.01]}}\nsearcher: {name: grid, metric: val_loss}",
        model,
    )
    grid.run()
    assert [one.state for one in grid.trials()] == ["invalid", "completed"]
    single = Project(
        tmp_path / "single", "hyperparameters: {lr: 0.1}\nsearcher: {name: single, metric: val_loss}", model
    )
    assert "no trial has completed" in single.run(code=1)
    assert [(one.state, one.attempts) for one in single.trials()] == [("invalid", 1)]


def test_a_search_with_rungs_replaces_them_too(tmp_path):
    model = MODEL.replace(BUILD, f"        if lr > 0.03: raise L.InvalidHP\n{BUILD}")
    for name in (f"{ASHA}, max_rungs: 2", f"{HALVING}, num_rungs: 2"):
        project = Project(
            tmp_path / name.split(",")[0], f"searcher: {{{name}, max_trials: 4, max_length: {{epochs: 2}}}}", model
        )
        project.run()
        states = [one.state for one in project.trials()]
        assert len(states) - states.count("invalid") == 4
        assert [one.state == "invalid" for one in project.trials()] == [
            one.hparams["lr"] > 0.03 for one in project.trials()
        ]
        assert "invalid" in states


def test_an_experiment_without_hyperparameters_that_fit_ends(tmp_path):
    project = Project(
        tmp_path,
        """
        entrypoint: sh invalid.sh
        hyperparameters: {x: {type: double, minval: 0, maxval: 1}}
        searcher: {name: random, metric: val_loss, max_trials: 4}
        """,
    )
    (project.folder / "message").write_text('{"kind": "invalid", "text": "Caught in a worker\\nnever"}\n')
    (project.folder / "invalid.sh").write_text("cat message >> messages.jsonl\nexit 1\n")
    printed = project.run(code=2)
    ended = sum(one.state == "invalid" for one in project.trials())
    assert 100 <= ended <= 104, "trials that run with the last ones may end as well"
    assert "trials that ended raised InvalidHP, the last: never" in printed
    assert "The experiment was ended: All 100 trials" in project.run(code=3)


@pytest.mark.parametrize(
    ("length", "report"),
    [
        ("max_length: 8", "step, val_loss=trial.hparams['x']"),
        ("time_metric: tokens, max_time: 800", "step, tokens=100 * step, val_loss=trial.hparams['x']"),
    ],
)
@pytest.mark.parametrize("stop_once", ["true", "false"])
def test_a_program_is_stopped_and_paused_at_its_reports(tmp_path, length, report, stop_once):
    project = Project(
        tmp_path,
        f"""
        entrypoint: python3 train.py
        hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
        searcher: {{{ASHA}, max_trials: 6, max_rungs: 3, {length}, stop_once: {stop_once}, max_concurrent_trials: 1}}
        """,
    )
    (project.folder / "train.py").write_text(PROGRAM.replace("{report}", report))
    project.run()
    found = [one for one in project.trials() if one.state != "invalid"]
    assert len(found) == 6
    ends = {one.number: max(validated(project, one.number)) for one in found}
    assert {ends[one.number] for one in found if one.state == "completed"} == {8}
    assert {ends[one.number] for one in found if one.state == "stopped"} <= {2, 4}
    assert {one.state for one in found} == {"completed", "stopped"}
    best = min(found, key=lambda one: one.hparams["x"])
    assert best.state == "completed"
