"""Signs of life: owners on this machine and on another one; clocks are never compared."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.beats import BeatFiles, BeatRows, Watch, has_ended, this_process
from lightlib.experiment.ledger.ledger import Ledger, LostAttempt
from tests.experiment.stores import memory

ELSEWHERE = {"host": "elsewhere", "space": "another", "pid": 1, "started": 1}


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def owned(ledger, owner):
    ledger.add(Entry(ledger.snapshot().trials))
    attempt = ledger.snapshot().attempts[-1]
    assert ledger.claim(attempt, owner)
    return ledger.fresh(attempt.id)


@pytest.fixture
def ledger():
    return Ledger(memory(), "experiment")


@pytest.mark.parametrize("kind", ["files", "rows"])
class TestElsewhere:
    def test_dead_when_no_new_beat_came_for_so_long(self, ledger, kind, tmp_path):
        beats, clock = (BeatFiles(tmp_path) if kind == "files" else BeatRows(ledger)), Clock()
        watch, attempt = Watch(beats, 60, clock), owned(ledger, ELSEWHERE)
        beats.send(attempt)
        for seconds, beat, dead in [(0, False, False), (50, True, False), (59, False, False), (2, False, True)]:
            clock.now += seconds
            if beat:
                beats.send(attempt)
            assert watch.is_dead(ledger.fresh(attempt.id)) is dead, seconds

    def test_one_that_never_sent_a_beat(self, ledger, kind, tmp_path):
        """It was killed between its claim and its first beat."""
        beats, clock = (BeatFiles(tmp_path) if kind == "files" else BeatRows(ledger)), Clock()
        watch, attempt = Watch(beats, 60, clock), owned(ledger, {})
        assert not watch.is_dead(ledger.fresh(attempt.id))
        clock.now += 61
        assert watch.is_dead(ledger.fresh(attempt.id))

    def test_a_watcher_that_slept_asks_again_first(self, ledger, kind, tmp_path):
        beats, clock = (BeatFiles(tmp_path) if kind == "files" else BeatRows(ledger)), Clock()
        watch, attempt = Watch(beats, 60, clock), owned(ledger, ELSEWHERE)
        assert not watch.is_dead(ledger.fresh(attempt.id))
        clock.now += 3600
        beats.send(attempt)
        assert not watch.is_dead(ledger.fresh(attempt.id))

    @pytest.mark.parametrize("hours", [-1, 1])
    def test_the_owners_clock_does_not_matter(self, ledger, kind, tmp_path, hours, monkeypatch):
        beats, clock = (BeatFiles(tmp_path) if kind == "files" else BeatRows(ledger)), Clock()
        watch, attempt = Watch(beats, 60, clock), owned(ledger, ELSEWHERE)
        import time

        present = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: present + hours * 3_600_000_000_000)
        beats.send(attempt)
        assert not watch.is_dead(ledger.fresh(attempt.id))
        clock.now += 61
        assert watch.is_dead(ledger.fresh(attempt.id))


def test_the_owner_of_a_lost_attempt_learns_it_at_its_next_beat(ledger):
    attempt = owned(ledger, ELSEWHERE)
    ledger.take_over(attempt)
    with pytest.raises(LostAttempt):
        BeatRows(ledger).send(attempt)


class TestHere:
    def test_this_process_lives(self, ledger, tmp_path):
        clock = Clock()
        watch, attempt = Watch(BeatFiles(tmp_path), 60, clock), owned(ledger, this_process())
        assert not has_ended(this_process())
        assert not watch.is_dead(attempt)
        clock.now += 61
        assert watch.is_dead(attempt), "it lives, and does nothing"

    @pytest.mark.processes
    def test_one_that_ended_is_dead_at_once(self, ledger, tmp_path):
        program = "from lightlib.experiment.ledger.beats import this_process as p; print(p())"
        printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        owner = eval(printed)
        assert owner["pid"] != os.getpid()
        if owner["started"] is None:
            pytest.skip("the start of a process is unknown on this system")
        assert has_ended(owner)
        assert Watch(BeatFiles(tmp_path), 60, Clock()).is_dead(owned(ledger, owner))

    def test_another_process_that_got_the_same_number(self):
        here = this_process()
        if here["started"] is None:
            pytest.skip("the start of a process is unknown on this system")
        assert has_ended({**here, "started": here["started"] - 1})

    @pytest.mark.parametrize("name", ["host", "space"])
    def test_of_one_elsewhere_nothing_is_known(self, name):
        assert not has_ended({**this_process(), "pid": 2**22 + 1, name: "another"})
