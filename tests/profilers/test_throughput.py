"""Throughput: rates over a window, in closed form, and the errors of wrong totals."""

from __future__ import annotations

import pytest

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.profilers import Throughput


def fed(throughput, updates, **more):
    for n in range(1, updates + 1):
        throughput.update(time=0.25 * n, batches=n, samples=8 * n, **{name: each(n) for name, each in more.items()})
    return throughput.compute()


def test_totals_first_and_rates_with_a_full_window():
    throughput = Throughput(window_size=3)
    assert throughput.compute() == {}
    assert fed(throughput, 2) == {"time": 0.5, "batches": 2, "samples": 16}
    throughput.reset()
    assert fed(throughput, 3) == {
        "time": 0.75,
        "batches": 3,
        "samples": 24,
        "device/batches_per_sec": 4.0,
        "device/samples_per_sec": 32.0,
    }


def test_only_the_window_counts():
    throughput = Throughput(window_size=2)
    fed(throughput, 5)
    throughput.update(time=2.25, batches=6, samples=41)
    assert throughput.compute()["device/samples_per_sec"] == 1.0


def test_items_operations_and_utilization():
    metrics = fed(Throughput(available_flops=4000, window_size=3), 3, lengths=lambda n: 80 * n, flops=lambda n: 100 * n)
    assert metrics["lengths"] == 240
    assert metrics["device/items_per_sec"] == 160 / 0.5
    assert metrics["device/flops_per_sec"] == (200 + 300) / 0.5
    assert metrics["device/mfu"] == (200 + 300) / 0.5 / 4000


def test_several_processes_of_which_some_read_the_same_data():
    metrics = fed(Throughput(world_size=4, window_size=2, data_size=2, separator="."), 2, flops=lambda n: 100)
    assert metrics["device.samples_per_sec"] == 32.0
    assert metrics["samples_per_sec"] == 64.0
    assert metrics["batches_per_sec"] == 8.0
    assert metrics["flops_per_sec"] == 4 * metrics["device.flops_per_sec"] == 4 * 400.0
    assert "device.mfu" not in metrics


@pytest.mark.parametrize(
    ("totals", "message"),
    [
        ({"time": 0.5, "batches": 3, "samples": 24}, r"time=0\.5 after 0\.5"),
        ({"time": 1.0, "batches": 2, "samples": 24}, "batches=2 after 2"),
        ({"time": 1.0, "batches": 3, "samples": 2}, "samples=2 after 16"),
        ({"time": 1.0, "batches": 30, "samples": 24}, "samples=24 with batches=30"),
        ({"time": 1.0, "batches": 3, "samples": 24, "lengths": 7}, "lengths=7 with samples=24"),
    ],
)
def test_wrong_totals(totals, message):
    throughput = Throughput(window_size=3)
    fed(throughput, 2)
    with pytest.raises(ValueError, match=message):
        throughput.update(**totals)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"window_size": 1}, MisconfigurationException, r"window_size=1\)"),
        ({"window_size": "9"}, ArgumentTypeError, r"window_size='9' \(str\)\)"),
        ({"world_size": 0}, MisconfigurationException, r"world_size=0\)"),
        ({"data_size": 0}, MisconfigurationException, r"data_size=0\)"),
        ({"separator": 1}, ArgumentTypeError, r"separator=1 \(int\)\)"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Throughput(**arguments)
