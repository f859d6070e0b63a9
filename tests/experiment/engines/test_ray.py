"""Workers as actors of Ray: a stand-in for the package, and a cluster of one machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.engines import ray as engine
from lightlib.experiment.file import read
from lightlib.experiment.work.folder import ExperimentFolder
from tests.experiment.work.project import Project, until
from tests.experiment.work.test_worker import assert_as_torch

FILE = {
    "name": "a",
    "fit": {"trainer": {}},
    "searcher": {"name": "random", "metric": "loss", "max_trials": 1},
    "reproducibility": {"experiment_seed": 7},
}


class FakeRay(types.ModuleType):
    """Actors are recorded; calls of `work` end with the given codes, None for one that finds no place."""

    def __init__(self, codes, resources):
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.codes, self.resources = codes, resources
        self.options, self.arguments, self.calls, self.killed = {}, [], [], []

    def init(self, **options):
        self.calls.append(("init", options["address"]))

    def shutdown(self):
        self.calls.append("shutdown")

    def cluster_resources(self):
        return self.resources

    def remote(self, **options):
        self.options = options
        return lambda cls: types.SimpleNamespace(remote=self._new)

    def _new(self, folder, output, slots):
        self.arguments.append((folder, slots))
        number = len(self.arguments) - 1

        def work():
            code = self.codes[number].pop(0)
            if code != "waits":
                Path(output).write_text(f"a: random\ntrial {number}: running\nthe end of {number}\n")
            return number, code, len(self.codes[number])

        def stop():
            self.calls.append(("stop", number))

        return types.SimpleNamespace(
            number=number, work=types.SimpleNamespace(remote=work), stop=types.SimpleNamespace(remote=stop)
        )

    def wait(self, refs, timeout):
        return [one for one in refs if one[1] != "waits"][:1], []

    def get(self, ref):
        return ref[1]

    def kill(self, actor):
        self.killed.append(actor.number)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Return a function that runs workers with a stand-in for Ray, and returns it and the events."""

    def go(codes, cluster, stops=0, slots=1):
        config = read({**FILE, "resources": {"slots_per_trial": slots}})
        folder = ExperimentFolder(tmp_path / "a")
        folder.path.mkdir(exist_ok=True)
        fake, events = FakeRay(codes, cluster), []
        monkeypatch.setitem(sys.modules, "ray", fake)
        with engine.open_workers(folder, config, len(codes), "head:6379", events.append, 1.0) as (workers, _):
            for _ in range(stops):
                workers.stop()
            workers.run()
        return fake, events

    return go


def test_an_actor_has_the_slots_of_a_trial_and_restarts_for_ever(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "ENDED", ("waiting",))
    fake, events = opened([[0], [0]], {"GPU": 4.0}, slots=2)
    assert fake.options == {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 2, "num_gpus": 2}
    assert fake.arguments == [(str(tmp_path / "a"), 2)] * 2
    assert fake.calls == [("init", "head:6379"), "shutdown"]
    assert events == ["trial 0: running", "trial 1: running"]
    fake, _ = opened([[0]], {"CPU": 1.0}, slots=0)
    assert fake.options["num_cpus"] == 1
    assert fake.arguments == [(str(tmp_path / "a"), 1)]


def test_actors_without_a_place_are_ended_with_the_experiment(opened, monkeypatch):
    monkeypatch.setattr(engine, "ENDED", ("waiting",))
    fake, events = opened([[0], ["waits"]], {"GPU": 1.0})
    assert events[0] == "The Ray cluster has 1 GPUs, and 2 workers need 2: some wait until it has more."
    assert fake.killed == [1]


def test_a_worker_that_was_killed_starts_again(opened, monkeypatch):
    monkeypatch.setattr(engine, "ENDED", ("waiting",))
    fake, events = opened([[-9, 0]], {"GPU": 1.0})
    assert "worker 0 was killed by signal 9; it starts again" in events
    assert fake.codes == [[]]


def test_a_stop_reaches_the_workers_that_run(opened):
    fake, events = opened([[143], [143], ["waits"]], {"GPU": 3.0}, stops=1)
    assert [call for call in fake.calls if call[0] == "stop"] == [("stop", 1)], "worker 0 has ended before"
    assert fake.killed == [2]
    assert not any("exit code" in event for event in events)


def test_failures_are_shown(opened):
    with pytest.raises(LightlibError, match=r"All workers have ended, and the experiment has not(.|\n)*the end of 0"):
        opened([[2]], {"GPU": 1.0})
    with pytest.raises(LightlibError, match=r"does not have the folder(.|\n)*shared file system"):
        opened([[None]], {"GPU": 1.0})


def test_an_actor_on_a_machine_without_the_folder_starts_nothing(tmp_path):
    assert engine.WorkerActor(str(tmp_path / "a"), str(tmp_path / "a" / "workers" / "0.txt"), 1).work() is None


def test_without_ray_the_fix_is_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MisconfigurationException, match=r"ray, which is not installed(.|\n)*pip install 'ray>="):
        engine.require_ray()


def processes(match):
    """Yield the process ids for which a condition on their folder in /proc holds."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if match(folder):
                yield int(folder.name)
        except OSError:
            continue


HOLD = "fit: {model: {init_args: {holds_at: [2]}}}\nresources: {slots_per_trial: 0}\nmax_restarts: 0\n"
RANDOM = "searcher: {name: random, metric: val_loss, max_trials: %d}"


@pytest.mark.processes
def test_an_actor_that_is_to_stop_lets_its_trial_pause(tmp_path, monkeypatch):
    project = Project(tmp_path / "project", f"{HOLD}{RANDOM % 1}")
    project.command("experiment", "create", "search.yaml")
    for name, value in project.environment().items():
        monkeypatch.setenv(name, value)
    output = tmp_path / "worker.txt"
    actor, codes = engine.WorkerActor(str(project.experiment), str(output), 1), []
    thread = threading.Thread(target=lambda: codes.append(actor.work()))
    thread.start()
    until(lambda: project.held() or codes)
    actor.stop()
    thread.join()
    assert codes == [128 + signal.SIGTERM], output.read_text()
    assert [(one.state, one.attempts) for one in project.trials()] == [("waiting", 1)]


@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install ray)")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_trials_of_a_killed_actor_complete_bit_for_bit(tmp_path, monkeypatch):
    """An actor is killed within the first epoch of its trial; it takes its processes along, and starts again."""
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray keeps its token there
    project = Project(tmp_path / "project", f"{HOLD}{RANDOM % 3}")
    process = project.start("experiment", "run", "search.yaml", "--on", "ray", "--workers", "2")
    until(lambda: len(project.held()) == 2 or process.poll() is not None)
    (held,) = processes(lambda one: os.readlink(one / "cwd") == str(project.attempts(0)[0]))
    worker = parent(parent(held))  # between them is the server that has forked the trial
    os.kill(parent(worker), signal.SIGKILL)
    until(lambda: not Path(f"/proc/{held}").exists() and not Path(f"/proc/{worker}").exists())
    project.let_go()
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    assert "3 completed" in printed
    assert "trial 0 (attempt 1): completed" in printed
    assert [(one.state, one.attempts) for one in project.trials()] == [("completed", n) for n in (2, 1, 1)]
    assert_as_torch(project, 3)


def parent(pid):
    """Return the process id of the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
