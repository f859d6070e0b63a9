"""SimpleProfiler: durations, and the table of them."""

from __future__ import annotations

import pytest

from lightlib.profilers import simple
from lightlib.profilers.simple import SimpleProfiler


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr(simple, "perf_counter", lambda: time[0])
    monkeypatch.setattr(simple, "monotonic", lambda: time[0])
    return time


def run(profiler: SimpleProfiler, now: list[float]) -> None:
    profiler.setup("fit", 0, None)
    with profiler.profile("run_training_epoch"):
        for _ in range(2):
            with profiler.profile("[LightningModule]Net.training_step"):
                now[0] += 1.5
        now[0] += 1
    now[0] += 4


def test_the_table_has_calls_and_shares(now: list[float]) -> None:
    profiler = SimpleProfiler()
    run(profiler, now)
    assert profiler.summary() == (
        "Profile (an action contains those that run within it)\n"
        "Action                             | Mean duration (s) | Calls | Total time (s) | Percentage %\n"
        "----------------------------------------------------------------------------------------------\n"
        "Total                              | -                 | 3     | 8              | 100\n"
        "run_training_epoch                 | 4                 | 1     | 4              | 50\n"
        "[LightningModule]Net.training_step | 1.5               | 2     | 3              | 37.5"
    )
    assert list(profiler.recorded_durations["[LightningModule]Net.training_step"]) == [1.5, 1.5]


def test_the_short_table_has_times_only(now: list[float]) -> None:
    profiler = SimpleProfiler(extended=False)
    run(profiler, now)
    lines = profiler.summary().splitlines()
    assert lines[1] == "Action                             | Mean duration (s) | Total time (s)"
    assert lines[3] == "run_training_epoch                 | 4                 | 4"


def test_every_run_has_a_table_of_its_own_and_the_last_one_stays(now: list[float]) -> None:
    profiler = SimpleProfiler()
    with profiler.profile("before"):
        now[0] += 1
    run(profiler, now)
    profiler.teardown("fit")
    assert set(profiler.recorded_durations) == {"before", "run_training_epoch", "[LightningModule]Net.training_step"}
    profiler.setup("test", 0, None)
    with profiler.profile("[LightningModule]Net.test_step"):
        now[0] += 2
    assert (
        profiler.summary().splitlines()[-1]
        == "[LightningModule]Net.test_step | 2                 | 1     | 2              | 100"
    )


def test_nothing_measured_is_an_empty_table(now: list[float]) -> None:
    now[0] += 1
    assert SimpleProfiler(extended=False).summary().count("\n") == 2
