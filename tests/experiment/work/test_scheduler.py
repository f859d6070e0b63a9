"""Workers of several experiments share the slots of a machine by priority, weight and age."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import pytest

pytest.importorskip("optuna")

from lightlib.errors import LightlibError
from lightlib.experiment.file import read
from lightlib.experiment.work.scheduler import Scheduler
from lightlib.experiment.work.worker import Worker
from tests.experiment.work.project import MODEL, Project, until
from tests.experiment.work.test_worker import assert_as_torch
from tests.processes.programs import Program

FILE = {"name": "a", "fit": {"trainer": {}}, "searcher": {"name": "random", "metric": "loss", "max_trials": 1}}

FOUR_SLOTS = """
import os, runpy, sys

if __name__ == "__main__":
    os.sched_getaffinity = lambda _: range(4)  # this machine may have fewer
    sys.argv[1:] = ["experiment", "work", "light", "heavy", "--slots", "4"]
    runpy.run_module("lightlib", run_name="__main__")
"""


class Fake:
    """A worker with trials that run until the next look, on slots that it shares."""

    def __init__(self, name, free, log, trials=4, priority=42, weight=1.0, fails=False):
        self.name, self.free, self.log, self.left, self.fails = name, free, log, trials, fails
        self.priority, self.weight, self.here, self.handles, self.stops = priority, weight, 0, [], 0
        self.closed = self.left_rest = False

    @property
    def turn(self):
        return self.priority, self.here / self.weight

    @property
    def runs(self):
        return self.here > 0

    def claim(self):
        if not self.left or not self.free or self.stops:
            return False
        self.free.pop()
        self.left, self.here = self.left - 1, self.here + 1
        self.log.append(self.name)
        return True

    def look(self):
        if self.fails and self.here:
            raise LightlibError(f"{self.name} fails")
        self.free += [None] * self.here
        ended, self.here = self.here > 0, 0
        return ended

    def read_ledger(self):
        return True

    def is_done(self):
        return not self.here and (not self.left or self.stops > 0)

    def show_idle(self):
        raise AssertionError("there is always a trial")

    def begin(self):
        self.log.append(f"begin {self.name}")

    def close(self):
        self.closed, self.here = True, 0

    def leave(self):
        self.left_rest = True

    def stop(self):
        self.stops += 1


def test_a_smaller_priority_is_first():
    free, log = [None] * 2, []
    Scheduler([Fake("a", free, log, 3), Fake("b", free, log, 3, priority=1)]).run()
    assert log == ["begin a", "begin b", *"bb", *"ba", *"aa"]


def test_experiments_share_slots_by_their_weights():
    free, log = [None] * 4, []
    Scheduler([Fake("a", free, log, 8), Fake("b", free, log, 8, weight=3.0)]).run()
    first = "".join(log[2:6])
    assert (first.count("a"), first.count("b")) == (1, 3)
    assert first[0] == "a"  # of equal ones the oldest


def test_an_experiment_that_fails_does_not_end_the_rest():
    free, log, ended = [None] * 2, [], []
    fails, works = Fake("a", free, log, fails=True), Fake("b", free, log)
    Scheduler([fails, works], ended=lambda one, error: ended.append((one.name, str(error)))).run()
    assert ended == [("a", "a fails"), ("b", "None")]
    assert (fails.closed, fails.left_rest, works.closed, works.left_rest) == (True, False, True, True)
    with pytest.raises(LightlibError, match="a fails"):
        Scheduler([Fake("a", [None], [], fails=True)]).run()


def test_a_worker_that_is_found_after_a_signal_stops():
    scheduler = Scheduler([])
    new = [Fake("a", [None], [])]
    found = iter([new, []])

    def find():
        scheduler.stop()
        return next(found)

    scheduler._new = [Fake("first", [None], [], 1)]
    scheduler._find = find
    scheduler.run()
    assert (new[0].stops, new[0].left, new[0].closed) == (1, 4, True)


@pytest.mark.parametrize(("resources", "used", "turn"), [({}, 0, (42, 0)), ({"priority": 7, "weight": 2}, 3, (7, 1.5))])
def test_the_turn_of_a_worker(resources, used, turn):
    worker = Worker(read({**FILE, "resources": resources}), *[None] * 8)
    worker._here += [SimpleNamespace(slots=(None,))] * used
    assert worker.turn == turn


@pytest.mark.processes
def test_a_pool_of_experiments(tmp_path):
    """One begins while the worker of the pool runs; after Ctrl-C the same command completes both, and not the rest."""
    model = MODEL.replace("{Path.cwd().parent.name}", "{Path.cwd().parents[4].name}")
    projects = [
        Project(
            tmp_path / name,
            f"""
            fit: {{model: {{init_args: {{holds_at: [2]}}}}}}
            searcher: {{name: random, metric: val_loss, max_trials: 1}}
            resources: {{resource_pool: {pool}}}
            """,
            f"{model}\n# {name}\n",
        )
        for name, pool in (("one", "a"), ("two", "b"), ("three", "a"))
    ]
    one, two, three = projects
    for project in (one, two):
        project.command("experiment", "create", "search.yaml")
    words = ("experiment", "work", "--pool", "a", "--root", str(tmp_path), "--slots", "2")
    process = one.start(*words)
    until(one.held)
    three.command("experiment", "create", "search.yaml")
    until(lambda: len(one.held()) == 2)
    os.kill(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 130, printed
    assert "To continue: lightlib experiment work --pool a --root" in printed
    one.let_go()
    one.command(*words)
    for project in (one, three):
        assert_as_torch(project, 1)
        assert [trial.attempts for trial in project.trials()] == [2]
    assert two.trials() == []


@pytest.mark.processes
def test_priority_most_slots_and_the_best_of_the_experiment(tmp_path):
    """The experiment that is found last begins first; the other one has one of two slots, and keeps one checkpoint."""
    project = Project(
        tmp_path,
        """
        checkpoint_storage: {save_experiment_best: 1, save_trial_best: 0, save_trial_latest: 0}
        searcher: {name: random, metric: val_loss, max_trials: 2, max_length: {epochs: 1}}
        """,
    )
    for name, resources in (("later", "{priority: 50, max_slots: 1}"), ("sooner", "{priority: 7}")):
        changes = ("--config", f"name={name}", "--config", f"resources={resources}")
        project.command("experiment", "create", "search.yaml", *changes)
    printed = project.command("experiment", "work", "later", "sooner", "--slots", "2")
    lines = [line for line in printed.splitlines() if " running on " in line or " completed, best " in line]
    order = [line.partition("trial")[0] for line in lines]
    starts = [name for name, line in zip(order, lines, strict=True) if " running on " in line]
    assert ["sooner" in one for one in starts] == [True, True, False, False], printed
    later = [line for line in lines if "later" in line]
    assert [" running on " in line for line in later] == [True, False, True, False], printed
    for name in ("later", "sooner"):
        best = json.loads(project.command("experiment", "best", name, "--json"))["checkpoint"]
        files = list((project.folder / "experiments" / name).glob("trials/*/attempt-*/checkpoints/*"))
        assert [path.resolve() for path in files] == [(project.folder / best).resolve()]


@pytest.mark.processes
def test_four_slots_by_the_weights_of_two_experiments(tmp_path):
    """All trials wait at their second step, so the first four have the slots."""
    project = Project(
        tmp_path,
        "fit: {model: {init_args: {holds_at: [2]}}}",
        MODEL.replace("{Path.cwd().parent.name}", "{Path.cwd().parents[2].name}-{Path.cwd().parent.name}"),
    )
    for name, weight in (("light", 1), ("heavy", 3)):
        changes = ("--config", f"name={name}", "--config", f"resources.weight={weight}")
        project.command("experiment", "create", "search.yaml", *changes)
    script = project.folder / "four.py"
    script.write_text(FOUR_SLOTS)
    process = Program(str(script), env=project.environment(), cwd=project.folder, merged=True, serves=True)
    project.started.append(process)
    until(lambda: len(project.held()) == 4)
    assert sorted(path.name.partition("-")[0] for path in project.held()) == ["heavy", "heavy", "heavy", "light"]
    project.let_go()
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    assert printed.count(": completed, best ") == 8, printed


@pytest.mark.processes
def test_experiments_that_cannot_run_here(tmp_path):
    """Of those with a name the worker refuses; of a pool it works on the rest. One that fails is its exit code."""
    project = Project(tmp_path)
    for name, change in (("good", "resources.weight=2"), ("large", "resources.slots_per_trial=99"), ("bad", "")):
        changes = ["--config", change] if change else ["--config", "searcher.metric=loss"]
        project.command("experiment", "create", "search.yaml", "--config", f"name={name}", *changes)
    printed = project.command("experiment", "work", "large", "good", code=2)
    assert "is 99, and this worker has" in printed
    project.command("experiment", "continue", "good", "--max-trials", "5")
    printed = project.command("experiment", "work", "--pool", "any", "--slots", "2", code=1)
    assert "experiments/large: cannot run here. 'resources.slots_per_trial'" in printed
    assert "The searcher's metric is 'loss'. The validation does not log it" in printed
    assert "5 completed" in printed
    assert "There is nothing to do" in project.command("experiment", "work", "--pool", "any", "--root", "empty")
    printed = project.command("experiment", "work", code=2)
    assert "names no experiment" in printed
    project.command("experiment", "create", "search.yaml", "--config", "resources.resource_pool=b")
    assert "is 'b', and this worker has --pool a" in project.command(
        "experiment", "work", "search", "--pool", "a", code=2
    )
