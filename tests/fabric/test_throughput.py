"""ThroughputMonitor of Fabric: the rates of a loop, logged by rank zero for all processes."""

from __future__ import annotations

import pytest

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.fabric.throughput import ThroughputMonitor
from tests.processes.ranks import ranks
from tests.runs.plain import Rows


def measured(**arguments):
    rows = Rows()
    fabric = L.Fabric(accelerator="cpu", loggers=rows, **arguments)
    fabric.launch()
    monitor = ThroughputMonitor(fabric, window_size=2)
    returned = []
    for done in (1, 2, 3):
        monitor.update(time=0.5 * done, batches=done, samples=8 * done)
        returned.append(monitor.compute_and_log(step=None if done < 3 else 30))
    return returned, rows.rows


def test_one_process():
    returned, rows = measured(devices=1)
    first = {"time": 0.5, "batches": 1, "samples": 8}
    assert returned[0] == first
    assert returned[2] == {
        "time": 1.5, "batches": 3, "samples": 24, "device/batches_per_sec": 2.0, "device/samples_per_sec": 16.0,
    }  # fmt: skip
    assert [step for step, _ in rows] == [0, 1, 30]
    assert [row for _, row in rows] == returned


def on_two(rank):
    return measured(devices=2, strategy="ddp")


@pytest.mark.processes
def test_two_processes():
    (returned, rows), other = ranks(2, on_two)
    assert returned[2]["samples_per_sec"] == 2 * returned[2]["device/samples_per_sec"] == 32.0
    assert [row for _, row in rows] == returned
    assert other == ([{}] * 3, [])


def test_it_forgets_and_refuses():
    fabric = L.Fabric(accelerator="cpu", devices=1)
    monitor = ThroughputMonitor(fabric, window_size=2)
    monitor.update(time=1.0, batches=1, samples=1)
    monitor.reset()
    assert monitor.compute() == {}
    with pytest.raises(MisconfigurationException, match=r"window_size=1\)"):
        ThroughputMonitor(fabric, window_size=1)
