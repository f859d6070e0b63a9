"""The interface of profilers, and where a summary goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lightlib import profilers, report
from lightlib.errors import MisconfigurationException
from lightlib.profilers.advanced import AdvancedProfiler
from lightlib.profilers.profiler import PassThroughProfiler, Profiler
from lightlib.profilers.pytorch import PyTorchProfiler
from lightlib.profilers.simple import SimpleProfiler
from tests.processes import programs

MAKERS: list[Any] = [SimpleProfiler, AdvancedProfiler, lambda: PyTorchProfiler(export_to_chrome=False)]


class Fixed(Profiler):
    default_filename = "fixed"

    def start(self, action_name: str) -> None:
        pass

    def stop(self, action_name: str) -> None:
        pass

    def summary(self) -> str:
        return "what was measured"


@pytest.mark.parametrize("make", MAKERS)
def test_starting_twice_is_explained(make: Any) -> None:
    profiler = make()
    profiler.start("load")
    with pytest.raises(MisconfigurationException) as error:
        profiler.start("load")
    profiler.stop("load")
    profiler.teardown(None)
    assert str(error.value) == (
        "The action 'load' was started while it was already running.\n"
        "  Expected: one stop for every start before the next start of the same name.\n"
        "  Fix: with profiler.profile('load'): ..., or another name for the inner action."
    )


@pytest.mark.parametrize("make", MAKERS)
def test_stopping_what_does_not_run_is_explained(make: Any) -> None:
    profiler = make()
    profiler.start("loading")
    with pytest.raises(MisconfigurationException) as error:
        profiler.stop("loadin")
    profiler.stop("loading")
    profiler.teardown(None)
    assert str(error.value) == (
        "The action 'loadin' was stopped but is not running. Did you mean 'loading'?\n"
        "  Expected: one of the running actions: 'loading'.\n"
        "  Fix: with profiler.profile('loadin'): ..., or profiler.start('loadin') first."
    )


@pytest.mark.parametrize("make", [*MAKERS, PassThroughProfiler])
def test_an_action_ends_when_it_raises(make: Any) -> None:
    profiler = make()
    for _ in range(2):
        with pytest.raises(KeyError), profiler.profile("raises"):
            raise KeyError
    profiler.teardown(None)


@pytest.mark.parametrize("make", MAKERS)
def test_a_profiler_is_used_for_several_runs(make: Any) -> None:
    profiler = make()
    for stage in ("fit", "test"):
        profiler.setup(stage, 0, None)
        with profiler.profile("outer"), profiler.profile("inner"):
            pass
        profiler.summary()
        profiler.teardown(stage)
    profiler.setup("fit")
    profiler.start("interrupted")
    profiler.teardown("fit")
    profiler.start("interrupted")
    profiler.stop("interrupted")
    profiler.teardown("fit")


def test_a_summary_is_shown_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(report, "info", said.append)
    Fixed().describe()
    assert said == ["what was measured"]
    cases = [
        (Fixed(dirpath=tmp_path / "a"), None, tmp_path / "a" / "fit-fixed-1.txt"),
        (Fixed(dirpath=tmp_path / "a", filename="mine"), "unused", tmp_path / "a" / "fit-mine-1.txt"),
        (Fixed(filename="mine"), str(tmp_path / "log"), tmp_path / "log" / "fit-mine-1.txt"),
    ]
    for profiler, log_dir, path in cases:
        profiler.setup("fit", local_rank=1, log_dir=log_dir)
        profiler.describe()
        assert path.read_text() == "what was measured"
        assert said[-1] == f"The profile was written to {path}"


def test_the_folder_is_that_of_the_logs_once_they_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(report, "info", said.append)
    profiler = Fixed()
    assert profiler.dirpath is None
    profiler.setup("fit", log_dir=str(tmp_path))
    assert profiler.dirpath == str(tmp_path)
    profiler.describe()
    assert said == ["what was measured"]  # no file was requested
    profiler.dirpath = tmp_path / "own"
    profiler.describe()
    assert (tmp_path / "own" / "fit-fixed.txt").exists()


def test_a_profiler_of_one_process_has_no_rank_in_its_names(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for profiler, names in (
        (Fixed(folder, "mine"), ["mine.txt"]),
        (SimpleProfiler(folder, "mine"), ["mine.txt"]),
        (AdvancedProfiler(folder, "mine"), ["mine.txt"]),
        (AdvancedProfiler(folder, dump_stats=True), ["a_b.prof", "advanced.txt"]),
        (PyTorchProfiler(folder, "mine", schedule=None, export_to_chrome=False), ["mine.txt"]),
    ):
        with profiler.profile("a/b"):
            torch.ones(2).sum()
        profiler.describe()
        assert (profiler.dirpath, sorted(os.listdir(folder))) == (folder, names)
        for name in names:
            (tmp_path / name).unlink()


def test_nothing_to_say_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(report, "info", said.append)
    with PassThroughProfiler().profile("nothing"):
        pass
    PassThroughProfiler().describe()
    assert said == []


@pytest.mark.processes
def test_names_are_imported_on_first_use() -> None:
    assert profilers.SimpleProfiler is SimpleProfiler
    assert {"AdvancedProfiler", "PyTorchProfiler"} <= set(dir(profilers))
    with pytest.raises(AttributeError, match="has no attribute 'NoProfiler'"):
        _ = profilers.NoProfiler
    code = "import sys, lightlib.profilers; print([m for m in sys.modules if m.startswith('lightlib.profilers.')])"
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.processes
def test_a_program_may_end_while_a_profiler_records() -> None:
    code = (
        "from lightlib.profilers import PyTorchProfiler; profiler = PyTorchProfiler('.', 'ops', schedule=None); "
        "profiler.start('step'); import torch; torch.ones(2).sum()"
    )
    done = programs.interpreter("-c", code)
    assert done.returncode == 0, done.stderr
    assert Path("ops-step0.trace.json").exists()
