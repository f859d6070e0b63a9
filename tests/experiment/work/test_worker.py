"""Workers run trials, as many at once as may be, in spite of deaths, with the numbers of torch."""

from __future__ import annotations

import os
import signal

import pytest
import torch

pytest.importorskip("optuna")

from lightlib.experiment.file import read
from lightlib.experiment.space import Space, trial_seed
from tests.experiment.work.project import Project, trained, until

pytestmark = pytest.mark.processes


def drawn(project, trials):
    """The learning rates of the first trials, from the space and the seed alone."""
    space = Space(read(project.folder / "search.yaml").hyperparameters)
    return [space.sample_trial(7, number)["lr"] for number in range(trials)]


def assert_as_torch(project, trials, epochs=3):
    """Each trial has bit for bit the weights and the losses of a plain loop."""
    found = project.trials()
    for number, lr in enumerate(drawn(project, trials)):
        weights, losses = trained(lr, trial_seed(7, number), epochs)
        assert found[number].hparams["lr"] == lr
        assert found[number].metric == min(losses)
        assert all(torch.equal(project.weights(number)[name], value) for name, value in weights.items())


def test_a_random_search_trains_as_torch_does(tmp_path):
    project = Project(tmp_path)
    printed = project.run()
    assert_as_torch(project, 4)
    found = project.trials()
    best = min(found, key=lambda one: one.metric)
    assert f"best: trial {best.number}, val_loss {best.metric:.6g} after" in printed
    assert "4 completed" in printed
    assert "page: experiments/search/report.html" in printed
    assert f"trial {best.number}, val_loss {best.metric:.6g}" in (project.experiment / "report.html").read_text()
    assert {one.state for one in found} == {"completed"}
    assert project.run().count("running") == 0  # nothing is left to do


def test_two_of_six_run_at_once(tmp_path):
    project = Project(
        tmp_path,
        "searcher: {name: random, metric: val_loss, max_trials: 6, max_concurrent_trials: 2}",
    )
    printed = project.command("experiment", "run", "search.yaml", "--slots", "2")
    now, most = 0, 0
    for line in printed.splitlines():
        now += ("running" in line and line.startswith("trial")) - ("completed, best" in line)
        most = max(most, now)
    assert (most, printed.count("completed, best")) == (2, 6)


def test_a_grid_has_all_points_and_a_single_trial_is_one(tmp_path):
    grid = Project(
        tmp_path / "grid",
        """
        hyperparameters:
          lr: {type: categorical, vals: [0.1, 0.01]}
          momentum: {type: double, minval: 0, maxval: 0.9, count: 2}
        searcher: {name: grid, metric: val_loss, max_length: {epochs: 1}}
        """,
    )
    grid.run()
    found = [(one.hparams["lr"], one.hparams["momentum"]) for one in grid.trials()]
    assert found == [(0.1, 0.0), (0.1, 0.9), (0.01, 0.0), (0.01, 0.9)]
    for number, (lr, momentum) in enumerate(found):
        weights, _ = trained(lr, trial_seed(7, number), 1, momentum)
        assert all(torch.equal(grid.weights(number)[name], value) for name, value in weights.items())
    single = Project(tmp_path / "single", "searcher: {name: single, metric: val_loss}\nhyperparameters: {lr: 0.1}")
    single.run()
    assert [one.hparams for one in single.trials()] == [{"lr": 0.1}]


def test_a_trial_that_dies_twice_completes_bit_for_bit(tmp_path):
    """Killed within the second and the third epoch, so it resumes from a checkpoint, and loses no random number."""
    project = Project(
        tmp_path,
        "fit: {model: {init_args: {dies_at: [6, 10]}}}\nsearcher: {name: random, metric: val_loss, max_trials: 2}",
    )
    printed = project.run()
    assert printed.count("was killed by SIGKILL (often: out of memory); restart 1 of 5") == 2
    assert [one.attempts for one in project.trials()] == [3, 3]
    assert_as_torch(project, 2)


def test_a_trial_that_always_fails_is_errored(tmp_path):
    project = Project(
        tmp_path,
        """
        max_restarts: 2
        fit: {model: {init_args: {fails_at: [2]}}}
        searcher: {name: random, metric: val_loss, max_trials: 2}
        """,
    )
    printed = project.run(code=1)
    assert [(one.state, one.attempts) for one in project.trials()] == [("errored", 3)] * 2
    assert "ValueError: step 2 fails; restart 2 of 2" in printed
    assert "ValueError: step 2 fails; no restart" in printed
    assert "no trial has completed" in printed
    assert "ValueError: step 2 fails" in project.log(0)
    followed = project.command("experiment", "logs", "search/0", "--follow", "--grep", "ValueError")
    assert (followed.count("== attempt"), followed.count("step 2 fails")) == (3, 3)


def test_a_metric_that_no_validation_logs_ends_the_experiment(tmp_path):
    project = Project(tmp_path, "fit: {model: {init_args: {metric: loss}}}")
    printed = project.run(code=2)
    assert "The searcher's metric is 'val_loss'. The validation does not log it; logged were: loss" in printed
    assert "Expected: a validation that logs the metric" in printed
    assert "Fix: self.log('val_loss', …)" in printed
    assert "Traceback" not in printed
    assert "The experiment was ended: The searcher's metric is 'val_loss'" in project.run(code=3)
    assert "canceled" in project.command("experiment", "trials", "search")


def test_policies_of_the_log(tmp_path):
    project = Project(
        tmp_path,
        """
        log_policies:
          - {name: hopeless, pattern: 'step 2 fails', action: cancel_retries}
          - {name: greets, pattern: hello}
        fit: {model: {init_args: {fails_at: [2], prints: hello}}}
        searcher: {name: random, metric: val_loss, max_trials: 1}
        """,
    )
    printed = project.run(code=1)
    assert "its output matches greets, hopeless" in printed
    assert "no restart" in printed
    assert [(one.state, one.attempts, one.labels) for one in project.trials()] == [
        ("errored", 1, ("greets", "hopeless"))
    ]


HOLD = "fit: {model: {init_args: {holds_at: [6]}}}\n"  # within the second of three epochs


def test_ctrl_c_pauses_the_trials_and_the_same_command_continues(tmp_path):
    project = Project(tmp_path, f"{HOLD}searcher: {{name: random, metric: val_loss, max_trials: 3}}")
    process = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 130, printed
    assert "Stopping: trials save a checkpoint" in printed
    assert printed.count("paused") == 2
    assert "To continue: lightlib experiment run search.yaml" in printed
    assert [one.state for one in project.trials()] == ["waiting", "waiting"]
    assert all((project.attempts(number)[0] / "checkpoints" / "interrupted.ckpt").exists() for number in (0, 1))
    project.let_go()
    project.run()
    assert [(one.state, one.attempts) for one in project.trials()] == [
        ("completed", 2),
        ("completed", 2),
        ("completed", 1),
    ]
    assert_as_torch(project, 3)


def test_ctrl_c_while_the_first_trial_starts(tmp_path):
    """The server of the trials still imports torch, and is in the group that gets the signal."""
    project = Project(tmp_path, "searcher: {name: random, metric: val_loss, max_trials: 1}")
    process = project.start_interpreter("experiment", "run", "search.yaml", "--slots", "1")
    until(lambda: project.attempts(0))
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 130, printed
    assert "To continue: lightlib experiment run search.yaml" in printed
    assert "Traceback" not in printed
    project.run()
    assert_as_torch(project, 1)


def test_after_a_kill_of_everything_the_same_command_ends_with_the_same_result(tmp_path):
    project = Project(tmp_path, HOLD)
    process = project.start_interpreter("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2)
    os.kill(process.pid, signal.SIGKILL)  # the trials are in sessions of their own: they end with it
    process.communicate(timeout=300)
    project.let_go()
    project.run()
    assert [(one.state, one.attempts) for one in project.trials()] == [("completed", 2)] * 2 + [("completed", 1)] * 2
    assert_as_torch(project, 4)


def test_the_last_report_of_a_trial_outlives_the_worker(tmp_path):
    """The worker is frozen while the trial ends, and killed before it has read the only validation."""
    project = Project(
        tmp_path,
        """
        fit: {model: {init_args: {holds_at: [2]}}}
        searcher: {name: random, metric: val_loss, max_trials: 1, max_length: {epochs: 1}}
        """,
    )
    process = project.start("experiment", "run", "search.yaml", "--slots", "1")
    until(project.held)
    os.kill(process.pid, signal.SIGSTOP)
    project.let_go()
    until(lambda: [one for one in project.messages(0, "checkpoint") if one["path"].endswith("last.ckpt")])
    assert project.messages(0, "validated")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    project.run()
    assert [(one.state, one.attempts) for one in project.trials()] == [("completed", 2)]
    assert_as_torch(project, 1, epochs=1)


def test_two_workers_share_the_slots_of_a_machine_and_the_trials(tmp_path):
    project = Project(
        tmp_path, f"{HOLD}searcher: {{name: random, metric: val_loss, max_trials: 3, max_concurrent_trials: 0}}"
    )
    first = project.start("experiment", "run", "search.yaml", "--slots", "1")
    until(project.held)
    second = project.start("experiment", "work", "experiments/search", "--slots", "2")
    until(lambda: len(project.held()) == 2)  # slot 0 is in use, so the second worker has one slot
    assert [one.state for one in project.trials()] == ["running", "running"]
    project.let_go()
    printed = [one.communicate(timeout=600)[0] for one in (first, second)]
    assert [one.returncode for one in (first, second)] == [0, 0], printed
    assert "trial 0: running on cpu 0" in printed[0]
    assert "trial 1: running on cpu 1" in printed[1]
    assert sum(text.count("completed, best") for text in printed) == 3
    assert_as_torch(project, 3)
