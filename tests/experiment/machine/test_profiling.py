"""The measurements of trials by their worker, and the columns of them in `lightlib experiment trials`."""

from __future__ import annotations

import json
import re
import threading

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.machine import profiling
from lightlib.experiment.machine.load import Load
from lightlib.experiment.machine.profiling import Measured
from lightlib.experiment.machine.slots import Slot
from lightlib.experiment.machine.usage import Usage, usage_of
from tests.experiment.work.project import Project, until

GPU = {"device": 3, "utilization_percent": 50, "memory_bytes": 2_000}


def trial(folder, pid=7, slots=()):
    return Measured(pid, folder, slots)


class Machine:
    """A machine of which the test decides the clock and the loads."""

    def __init__(self, monkeypatch, *here):
        self.now, self.loads, self.shown = 0.0, {}, []
        monkeypatch.setattr(profiling, "loads", lambda pids: {pid: self.loads[pid] for pid in pids})
        monkeypatch.setattr(profiling.time, "monotonic", lambda: self.now)
        self.profiling = profiling.Profiling(lambda: here, threading.Event(), self.shown.append)

    def measure(self, now, **loads):
        self.now, self.loads = now, {int(pid.removeprefix("p")): load for pid, load in loads.items()}
        self.profiling.measure()


def lines(folder):
    return [json.loads(line) for line in (folder / "usage.jsonl").read_text().splitlines()]


def test_the_cpu_of_a_line_is_that_since_the_line_before(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, trial(tmp_path))
    machine.measure(10.0, p7=Load(5.0, 100))
    machine.measure(12.0, p7=Load(8.0, 300))
    machine.measure(13.0, p7=Load(8.5, 200))
    found = lines(tmp_path)
    assert [one["cpu_percent"] for one in found] == [None, 150.0, 50.0]
    assert [one["cpu_seconds"] for one in found] == [5.0, 8.0, 8.5]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", one["time"]) for one in found)
    assert not any("gpus" in one for one in found)
    assert usage_of([tmp_path]) == Usage(300, 100.0, None, None)


def test_gpus_of_a_trial(tmp_path, monkeypatch):
    (tmp_path / "cpu").mkdir()
    machine = Machine(
        monkeypatch, trial(tmp_path, slots=(Slot("cuda", 3),)), trial(tmp_path / "cpu", 8, (Slot("cpu", 0),))
    )
    monkeypatch.setattr("torch.cuda.utilization", lambda device: {3: 50}[device])
    monkeypatch.setattr("torch.cuda.device_memory_used", lambda device: {3: 2_000}[device])
    machine.measure(1.0, p7=Load(1.0, 1), p8=Load(1.0, 1))
    assert lines(tmp_path)[0]["gpus"] == [GPU]
    assert "gpus" not in lines(tmp_path / "cpu")[0]
    assert usage_of([tmp_path]) == Usage(1, None, 2_000, 50.0)


def test_a_machine_that_measures_nothing_reports_it_once(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, trial(tmp_path, slots=(Slot("cuda", 0),)))

    def missing(*_):
        raise FileNotFoundError("no /proc")

    def no_driver(device):
        raise RuntimeError("no driver")

    monkeypatch.setattr(profiling, "loads", missing)
    monkeypatch.setattr("torch.cuda.utilization", no_driver)
    machine.profiling.measure()
    machine.profiling.measure()
    assert machine.shown == [
        "profiling.enabled: CPU and memory cannot be measured on this machine: no /proc",
        "profiling.enabled: GPUs cannot be measured on this machine: no driver",
    ]
    assert not (tmp_path / "usage.jsonl").exists()


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, trial(tmp_path / "gone"), trial(tmp_path, 8))
    machine.measure(1.0, p7=Load(1.0, 1), p8=Load(1.0, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["usage.jsonl"]


def test_usage_over_attempts_with_a_torn_line(tmp_path):
    texts = ['{"cpu_percent": null, "memory_bytes": 5}\n{"cpu_percent": 10, "memory_bytes": 9}\n{"cpu', None]
    texts.append('{"cpu_percent": 40, "memory_bytes": 7}\n{"cpu_percent": 70, "memory_bytes": 3}\n')
    paths = [tmp_path / str(number) for number in range(3)]
    for path, text in zip(paths, texts, strict=True):
        path.mkdir()
        if text is not None:
            (path / "usage.jsonl").write_text(text)
    assert usage_of(paths) == Usage(9, 40.0, None, None)
    assert usage_of([]) == Usage(None, None, None, None)


@pytest.mark.processes
def test_a_trial_is_measured_while_it_runs(tmp_path):
    project = Project(
        tmp_path,
        """
        profiling: {enabled: true}
        fit: {model: {init_args: {holds_at: [2]}}}
        searcher: {name: random, metric: val_loss, max_trials: 1}
        """,
    )
    process = project.start("experiment", "run", "search.yaml", "--slots", "1")
    until(project.held)
    until(lambda: _measured(project) >= 2)
    project.let_go()
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    assert "no effect" not in printed
    found = lines(project.attempts(0)[0])
    assert max(one["memory_bytes"] for one in found) > 50_000_000, "torch is in it"
    listed = json.loads(project.command("experiment", "trials", "search", "--json"))
    assert listed[0]["usage"]["peak_memory_bytes"] == max(one["memory_bytes"] for one in found)
    head, row = project.command("experiment", "trials", "search").splitlines()
    assert re.split("  +", head)[5:7] == ["peak MB", "CPU %"]
    assert re.split("  +", row.strip())[5] == f"{listed[0]['usage']['peak_memory_bytes'] / 1e6:,.0f}"


def _measured(project):
    path = project.attempts(0)[0] / "usage.jsonl"
    return path.read_text().count("\n") if path.exists() else 0
