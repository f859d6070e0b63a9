"""`--until TIME`: the moment that a text means, and workers that end at it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib.command.experiments import stops as stops_of
from lightlib.command.experiments.until import calling_at, moment_of
from lightlib.command.main import main
from lightlib.errors import MisconfigurationException
from tests.experiment.work.project import Project
from tests.experiment.work.test_worker import assert_as_torch
from tests.processes.programs import HANGS_AFTER

NOW = datetime(2026, 11, 28, 12, 30, 15).astimezone()


def local(*numbers):
    return datetime(*numbers).astimezone()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", NOW + timedelta(seconds=5400)),
        ("2h30m", NOW + timedelta(seconds=9000)),
        ("2h 30m", NOW + timedelta(seconds=9000)),
        ("1d", NOW + timedelta(seconds=86400)),
        ("1d2h3m4s", NOW + timedelta(seconds=93784)),
        ("18:30", local(2026, 11, 28, 18, 30)),
        ("12:30:16", local(2026, 11, 28, 12, 30, 16)),
        ("12:30:15", local(2026, 11, 29, 12, 30, 15)),  # now is not after now
        ("9:05", local(2026, 11, 29, 9, 5)),
        ("2026-11-29T08:00", local(2026, 11, 29, 8)),
        ("2026-11-29 08:00:30", local(2026, 11, 29, 8, 0, 30)),
        ("2026-12-01", local(2026, 12, 1)),
        ("2026-12-01T08:00:00Z", datetime(2026, 12, 1, 8, tzinfo=timezone.utc)),
        ("2026-12-01T08:00:00+05:30", datetime(2026, 12, 1, 2, 30, tzinfo=timezone.utc)),
    ],
)
def test_a_moment(text, expected):
    assert moment_of(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("", "is '', which is no time", "--until 2h30m"),
        ("90", "is '90', which is no time", "--until 90m, for minutes"),
        ("tomorrow", "is 'tomorrow', which is no time", "--until 2h30m"),
        ("-5m", "is '-5m', which is no time", "--until 2h30m"),
        ("25:00", "is '25:00', which is no time", "--until 2h30m"),
        ("999999999999d", "which is no time", "--until 2h30m"),
        ("0m", "which was at 2026-11-28 12:30:15, and it is 2026-11-28 12:30:15", "--until 2h30m"),
        ("2026-11-28T12:00", "which was at 2026-11-28 12:00:00, and it is 2026-11-28 12:30:15", "--until 2h30m"),
    ],
)
def test_no_moment(text, problem, fix):
    with pytest.raises(MisconfigurationException) as caught:
        moment_of(text, NOW)
    assert problem in str(caught.value)
    assert "18:30, or a later date such as 2026-11-29T08:00." in str(caught.value)
    assert fix in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "search.yaml", "--until", "soon"], "--until is 'soon', which is no time"),
        (["work", "absent", "--until", "soon"], "--until is 'soon', which is no time"),
        (["run", "search.yaml", "--until", "2h", "--on", "slurm"], "--until is '2h', and with --on slurm"),
        (["run", "search.yaml", "--until", "2h", "--on", "kubernetes"], "--until is '2h', and with --on kubernetes"),
    ],
)
def test_a_wrong_time_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text("name: a\nentrypoint: [python3, a.py]\nsearcher: {name: single, metric: loss}\n")
    assert main(["experiment", *words]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Fix: " in printed
    assert [path.name for path in tmp_path.iterdir()] == ["search.yaml"]


class Stopped:
    """Counts how often it was to stop."""

    def __init__(self):
        self.count = 0

    def stop(self):
        self.count += 1


@pytest.fixture
def clock(monkeypatch):
    """Calls of the test in place of the time's."""
    calls = []

    @contextmanager
    def kept(moment, call):
        calls.append(call)
        yield

    monkeypatch.setattr(stops_of, "calling_at", kept)
    return calls


def test_ctrl_c_after_the_time_kills(clock):
    worker, shown = Stopped(), []
    with stops_of.stopping(worker, shown.append, NOW) as stops:
        clock[0]()
        assert (worker.count, stops) == (1, [124])
        signal.raise_signal(signal.SIGINT)
        assert (worker.count, stops) == (2, [124, 130])
    assert len(shown) == 1
    assert "The time is up" in shown[0]


def test_the_time_after_ctrl_c_changes_nothing(clock):
    worker, shown = Stopped(), []
    with stops_of.stopping(worker, shown.append, NOW) as stops:
        signal.raise_signal(signal.SIGTERM)
        clock[0]()
    assert (worker.count, stops) == (1, [143])
    assert len(shown) == 1


def test_a_function_is_called_at_its_moment_or_never():
    came, called = threading.Event(), []
    with calling_at(datetime.now().astimezone() - timedelta(seconds=1), came.set):
        assert came.wait(HANGS_AFTER)
    for moment in (datetime.now().astimezone() + timedelta(days=1), None):
        with calling_at(moment, lambda: called.append(1)):
            pass
    assert not called


@pytest.mark.processes
def test_a_worker_ends_in_time_and_the_same_command_continues(tmp_path):
    """Whether the time comes before or while its trial waits for a file, which it does until it has to end."""
    project = Project(
        tmp_path,
        """
        fit: {model: {init_args: {holds_at: [6]}}}
        searcher: {name: random, metric: val_loss, max_trials: 1}
        """,
    )
    printed = project.run("--until", "3s", code=124)
    assert "until 20" in printed.splitlines()[0]
    assert "The time is up: trials save a checkpoint" in printed
    assert "To continue: lightlib experiment run search.yaml\n" in printed
    assert {one.state for one in project.trials()} <= {"waiting"}
    project.let_go()
    assert "The time is up" not in project.command("experiment", "work", "search", "--until", "1d")
    assert [one.state for one in project.trials()] == ["completed"]
    assert_as_torch(project, 1)
