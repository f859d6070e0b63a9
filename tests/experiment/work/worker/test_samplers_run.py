"""Workers run searches by samplers, with the numbers of torch and of a plain loop of Optuna."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.space import trial_seed
from tests.experiment.searchers.sampling import PlainLoop
from tests.experiment.work.project import MODEL, Project, trained, until

pytestmark = pytest.mark.processes

TWO_METRICS = MODEL.replace(
    "        self.log(self.hparams.metric,",
    '        self.log("size", self.layer.weight.norm())\n        self.log(self.hparams.metric,',
)


def test_tpe_in_batches_has_the_trials_of_a_plain_loop(tmp_path):
    """Everything is killed within the first batch.

    Each batch of two is drawn before Optuna gets its losses, those of a plain training.
    """
    project = Project(
        tmp_path,
        """
        searcher:
          name: tpe
          metric: val_loss
          max_trials: 6
          max_length: {epochs: 1}
          max_concurrent_trials: 2
          synchronous: true
          options: {n_startup_trials: 2}
        fit: {model: {init_args: {holds_at: [2]}}}
        """,
    )
    process = project.start("experiment", "run", "search.yaml", "--slots", "2")
    until(lambda: len(project.held()) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    project.let_go()
    printed = project.run()
    assert [one.attempts for one in project.trials()] == [2, 2, 1, 1, 1, 1]
    loop = PlainLoop("tpe", {"n_startup_trials": 2}, experiment_seed=7)
    wanted = []
    for _ in range(3):
        batch = [10 ** loop.ask(lambda trial: trial.suggest_float("lr", -3, -1)) for _ in range(2)]
        for number, lr in enumerate(batch, len(wanted)):
            loop.study.tell(loop.trials[number], min(trained(lr, trial_seed(7, number), 1)[1]))
        wanted += batch
    found = project.trials()
    assert [one.hparams["lr"] for one in found] == wanted
    best = min(found, key=lambda one: one.metric)
    assert f"best: trial {best.number}, val_loss {best.metric:.6g} after" in printed


def test_two_metrics_have_a_front(tmp_path):
    project = Project(
        tmp_path,
        """
        searcher:
          name: nsga2
          metric: [val_loss, size]
          smaller_is_better: [true, false]
          max_trials: 6
          max_length: {epochs: 2}
          options: {population_size: 2}
        """,
        model=TWO_METRICS,
    )
    printed = project.run()
    last = {number: project.messages(number, "validated")[-1]["metrics"] for number in range(6)}
    values = {number: (one["val_loss"], one["size"]) for number, one in last.items()}
    front = [
        number
        for number, (loss, size) in values.items()
        if not any(a <= loss and b >= size and (a, b) != (loss, size) for a, b in values.values())
    ]
    found = project.trials()
    assert {one.number: tuple(one.metrics.values()) for one in found} == values
    assert {(one.state, one.step) for one in found} == {("completed", 8)}
    assert [line.split()[2].rstrip(",") for line in printed.splitlines() if line.startswith("best")] == list(
        map(str, front)
    )
    listed = json.loads(project.command("experiment", "best", "search", "--json"))
    assert [one["number"] for one in listed] == front
    assert all(one["checkpoint"] for one in listed)
    table = project.command("experiment", "best", "search").splitlines()
    assert table[0].split()[:3] == ["trial", "val_loss", "size"]
    assert [line.split()[0] for line in table[1:]] == list(map(str, front))
    assert "size" in project.command("experiment", "trials", "search").splitlines()[0]
    refused = project.command("experiment", "best", "search", "--copy", "best.ckpt", code=2)
    assert "Fix: --by val_loss" in refused
    project.command("experiment", "best", "search", "--by", "val_loss", "--copy", "best.ckpt")
    assert (project.folder / "best.ckpt").exists()


def test_a_validation_without_the_second_metric_ends_the_experiment(tmp_path):
    project = Project(tmp_path, "searcher: {name: random, metric: [val_loss, size], max_trials: 2}")
    printed = project.run(code=2)
    assert "The searcher's metric is 'size'. The validation does not log it; logged were: val_loss" in printed


def test_tpe_stops_trials_at_rungs(tmp_path):
    project = Project(
        tmp_path,
        """
        searcher:
          name: tpe
          metric: val_loss
          max_trials: 6
          max_length: {epochs: 3}
          max_concurrent_trials: 1
          options: {n_startup_trials: 2}
          stopping: {divisor: 3, max_rungs: 2, bracket_rungs: [2]}
        """,
    )
    project.run()
    found = project.trials()
    lengths = {one.number: max(each["step"] for each in project.messages(one.number, "validated")) for one in found}
    assert len(found) == 6
    assert all(lengths[one.number] == (12 if one.state == "completed" else 4) for one in found)
    assert {one.state for one in found} == {"completed", "stopped"}
    first = [project.messages(one.number, "validated")[0]["metrics"]["val_loss"] for one in found]
    for number, one in enumerate(found):  # the rule: among the best third of those before, and the best of few
        place = sum(value < first[number] for value in first[:number])
        assert (one.state == "completed") == (place < max((number + 1) // 3, 1))
