"""Turns: workers that begin at once add each trial one time, and a frozen one does not stop the rest."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.ledger import turns
from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.beats import BeatFiles, Watch, this_process
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.queue import Queue
from lightlib.experiment.ledger.storage import Patience, open_storage, open_with_engine
from lightlib.experiment.ledger.turns import FolderTurns, NoTurns, PostgresTurns, turns_of
from lightlib.experiment.searchers.plain import Plain
from tests.experiment.postgres import Postgres, why_not
from tests.experiment.stores import Alive, memory, worker

SPAWN = multiprocessing.get_context("spawn")  # a fork of this process may wait for a lock of its threads


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg")
    if reason := why_not():
        pytest.skip(reason)
    server = Postgres()
    yield server
    server.close()


def work(place, folder, trials, workers, barrier):
    with open_with_engine(place, Patience(60)) as (storage, engine):
        ledger = Ledger(storage, "experiment", turns=turns_of(folder, engine, "experiment", Patience(60)))
        source = Plain(trials, workers, lambda trial, _: Entry(trial))
        queue = Queue(ledger, Watch(BeatFiles(folder)), source, this_process())
        barrier.wait()
        while not queue.is_done():
            attempt = queue.next()
            if attempt is not None:
                ledger.end(attempt, "completed", 1.0)


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_workers_that_begin_at_once_add_each_trial_one_time(tmp_path, kind, request):
    """Without turns all of them would add the first trial, and then the second."""
    place = tmp_path if kind == "folder" else request.getfixturevalue("server").database("at_once")
    with open_storage(place) as storage:
        Ledger(storage, "experiment")
    barrier = SPAWN.Barrier(8)
    workers = [SPAWN.Process(target=work, args=(place, tmp_path, 24, 8, barrier)) for _ in range(8)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert [one.exitcode for one in workers] == [0] * 8
    with open_storage(place) as storage:
        attempts = Ledger(storage, "experiment").snapshot().attempts
    assert [(one.trial, one.ended_as) for one in attempts] == [(trial, "completed") for trial in range(24)]


def test_an_attempt_that_another_worker_added_first_is_void():
    """Both take their turn at once, as on a file system without locks."""
    shared, beats = memory(), Alive()
    ledger, queue = worker(shared, beats)
    rival = Ledger(shared, "experiment")
    add = ledger.add

    def late(entry, owner=None):
        rival.add(entry, {"name": "rival"})
        return add(entry, owner)

    beats.living.add("rival")
    ledger.add = late
    assert queue.next() is None
    assert [(one.ended_as, one.attribute("owner")["name"]) for one in ledger.snapshot().attempts] == [
        (None, "rival"),
        ("void", "one"),
    ]


class Reads:
    """Counts the reads of all trials of a storage."""

    def __init__(self, ledger, monkeypatch):
        self.count, read = 0, ledger.storage.get_all_trials

        def counted(*args, **kwargs):
            self.count += 1
            return read(*args, **kwargs)

        monkeypatch.setattr(ledger.storage, "get_all_trials", counted)


def test_an_attempt_is_added_after_one_look_at_the_ledger(monkeypatch):
    ledger, queue = worker(memory(), Alive())
    reads = Reads(ledger, monkeypatch)
    assert queue.next().trial == 0
    assert reads.count == 1


def test_a_missed_turn_reads_nothing_and_ends_nothing(monkeypatch):
    """The next look that is not preceded by a missed turn reads the ledger, as when no slot is free meanwhile."""
    ledger, queue = worker(memory(), Alive())
    ledger.end(queue.next(), "completed", 1.0)
    waits = []

    @contextmanager
    def missed(*, patient):
        waits.append(patient)
        yield False

    monkeypatch.setattr(ledger.turns, "turn", missed)
    reads = Reads(ledger, monkeypatch)
    assert queue.next() is None
    assert queue.next(patient=True) is None
    assert not queue.is_done()
    assert (waits, reads.count) == ([False, True], 0)
    assert queue.is_done()
    assert reads.count == 1


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["folder", "postgresql"])
@pytest.mark.parametrize(("patient", "least"), [(False, 0.2), (True, 1.0)])
def test_a_worker_without_trials_waits_longer(tmp_path, kind, patient, least, request, monkeypatch):
    monkeypatch.setattr(turns, "_WAIT", 0.2)
    monkeypatch.setattr(turns, "_LONG_WAIT", 1.0)
    place = tmp_path if kind == "folder" else request.getfixturevalue("server").database(f"waits_{patient}".lower())
    with open_with_engine(place, Patience(60)) as (_, engine):
        rivals = [turns_of(tmp_path, engine, "experiment", Patience(60)) for _ in range(2)]
        with rivals[0].turn() as first:
            began = time.monotonic()
            with rivals[1].turn(patient=patient) as second:
                assert (first, second) == (True, False)
        assert time.monotonic() - began >= least


def hold(place, folder, held, stuck):
    turns._STUCK = stuck
    with (
        open_with_engine(place, Patience(60)) as (_, engine),
        turns_of(folder, engine, "experiment", Patience(60)).turn() as mine,
    ):
        assert mine
        held.set()
        time.sleep(600)


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["folder", "postgresql"])
class TestHeld:
    @pytest.fixture
    def place(self, tmp_path, kind, request, monkeypatch):
        monkeypatch.setattr(turns, "_WAIT", 0.1)
        if kind == "folder":
            return tmp_path
        name = f"held_{request.node.originalname[-6:]}"
        return request.getfixturevalue("server").database(name)

    @pytest.fixture
    def holder(self, place, tmp_path, stuck, monkeypatch):
        """A process that has the turn."""
        monkeypatch.setattr(turns, "_STUCK", stuck)
        held = SPAWN.Event()
        process = SPAWN.Process(target=hold, args=(place, tmp_path, held, stuck))
        process.start()
        assert held.wait(600)
        yield process
        process.kill()
        process.join()

    def mine(self, place, folder, until):
        """Return the turns that were had in vain until one was had, or for so many seconds."""
        with open_with_engine(place, Patience(60)) as (_, engine):
            found, end, taken = turns_of(folder, engine, "experiment", Patience(60)), time.monotonic() + until, []
            while True:
                with found.turn() as mine:
                    taken.append(mine)
                if mine or time.monotonic() > end:
                    return taken

    @pytest.mark.parametrize("stuck", [600.0])
    def test_the_rest_wait_until_the_holder_is_dead(self, place, tmp_path, holder):
        assert not any(self.mine(place, tmp_path, 0.5))
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
        assert self.mine(place, tmp_path, 60)[-1]

    @pytest.mark.parametrize("stuck", [1.0])
    def test_a_frozen_holder_loses_it(self, place, tmp_path, holder):
        os.kill(holder.pid, signal.SIGSTOP)
        assert self.mine(place, tmp_path, 60)[-1]


def test_kinds(tmp_path, monkeypatch):
    class Engine:
        def __init__(self, name):
            self.dialect = self
            self.name = name

    found = [
        type(turns_of(tmp_path, None if name is None else Engine(name), "experiment", Patience(1)))
        for name in (None, "sqlite", "postgresql", "mysql")
    ]
    assert found == [FolderTurns, FolderTurns, PostgresTurns, NoTurns]
    monkeypatch.setattr(turns, "has_kernel_lock", lambda folder: False)
    assert type(turns_of(tmp_path, None, "experiment", Patience(1))) is NoTurns
