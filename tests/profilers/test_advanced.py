"""AdvancedProfiler: functions per action, also when actions run within actions."""

from __future__ import annotations

import pstats
import re
from pathlib import Path

import pytest

from lightlib.errors import MisconfigurationException
from lightlib.profilers.advanced import AdvancedProfiler


def outer_work() -> int:
    return sum(range(10))


def inner_work() -> int:
    return sum(range(10))


def nested(profiler: AdvancedProfiler) -> None:
    with profiler.profile("outer"):
        outer_work()
        with profiler.profile("inner"):
            inner_work()
        outer_work()


def calls(profiler: AdvancedProfiler, action: str) -> dict[str, int]:
    statistics = pstats.Stats(profiler.profiled_actions[action]).stats
    return {function[2]: row[1] for function, row in statistics.items()}


def test_every_action_has_the_functions_that_it_called_itself() -> None:
    profiler = AdvancedProfiler()
    for _ in range(3):
        nested(profiler)
    assert calls(profiler, "outer")["outer_work"] == 6
    assert "inner_work" not in calls(profiler, "outer")
    assert calls(profiler, "inner")["inner_work"] == 3
    summary = profiler.summary()
    assert summary.startswith("Profile of outer\n")
    assert "Profile of inner\n" in summary


def test_stopping_the_outer_action_first_keeps_the_inner_one_running() -> None:
    profiler = AdvancedProfiler()
    profiler.start("first")
    profiler.start("second")
    profiler.stop("first")
    inner_work()
    profiler.stop("second")
    assert calls(profiler, "second")["inner_work"] == 1


@pytest.mark.parametrize(("restriction", "share"), [(1, 0), (0.2, 0.2), (2.0, 0)])
def test_the_number_of_lines_is_limited(restriction: float, share: float) -> None:
    """The garbage collector may run within the action, and add functions: a share is one of all that ran."""
    profiler = AdvancedProfiler(line_count_restriction=restriction)
    nested(profiler)
    outer = profiler.summary().split("Profile of inner")[0]
    functions = int(re.search(r"List reduced from (\d+) ", outer)[1])
    rows = outer.split("filename:lineno(function)\n")[1].strip().splitlines()
    assert len(rows) == (round(share * functions) if share else int(restriction))
    assert len(rows) < functions


@pytest.mark.parametrize("restriction", [0, -1, 0.0, 1.5])
def test_a_limit_that_means_nothing_is_refused(restriction: float) -> None:
    with pytest.raises(
        MisconfigurationException, match=r"AdvancedProfiler\(line_count_restriction=.*\n  Expected: a share(.|\n)*Fix: "
    ):
        AdvancedProfiler(line_count_restriction=restriction)


def test_statistics_are_written(tmp_path: Path) -> None:
    profiler = AdvancedProfiler(dirpath=tmp_path, dump_stats=True)
    profiler.setup("fit", 0, None)
    with profiler.profile("[LightningModule]Net.step"):
        inner_work()
    profiler.describe()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fit-0-[LightningModule]Net.step.prof",
        "fit-advanced-0.txt",
    ]
    assert pstats.Stats(str(tmp_path / "fit-0-[LightningModule]Net.step.prof")).total_calls > 0
