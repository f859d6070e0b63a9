"""Storages for tests of the ledger: one that dies at a chosen write, and workers that share a folder."""

from __future__ import annotations

from collections.abc import Iterator

from optuna.storages import InMemoryStorage

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.queue import Queue

WRITES = ("create_new_trial", "set_trial_state_values", "set_trial_system_attr", "set_trial_intermediate_value")


class Killed(BaseException):
    """The worker is dead: nothing of it runs any more."""


def die():
    raise Killed


class Mortal:
    """A storage for one worker; the rest see all that it wrote.

    Args:
        shared: The storage of all.
        at: The number of a write, from 0.
        then: Called before that write. Default: the worker dies.
    """

    def __init__(self, shared, at=None, then=None):
        self._shared, self._at, self._then, self.writes = shared, at, then or die, 0

    def __getattr__(self, name):
        method = getattr(self._shared, name)
        if name not in WRITES:
            return method

        def write(*args, **kwargs):
            self.writes += 1
            if self.writes - 1 == self._at:
                self._then()
            return method(*args, **kwargs)

        return write


class Alive:
    """Beats of owners that are in `living`."""

    def __init__(self):
        self.living, self.sent = set(), []

    def send(self, attempt):
        self.sent.append(attempt.number)

    def last(self, attempt):
        return None

    def is_dead(self, attempt):
        owner = attempt.attribute("owner")
        return owner is None or owner["name"] not in self.living


class Numbered:
    """A source of so many trials, of which so many may be unfinished."""

    def __init__(self, trials, concurrency=2):
        self.trials, self.concurrency = trials, concurrency

    def next_entry(self, snapshot):
        if snapshot.trials == self.trials or len(snapshot.unfinished()) >= self.concurrency:
            return None
        return Entry(snapshot.trials)

    def is_done(self, snapshot):
        return snapshot.trials == self.trials


def worker(shared, beats, name="one", at=None, source=None, max_restarts=5, then=None):
    """Return the ledger and the queue of a worker that dies, or calls `then`, before its write number `at`."""
    beats.living.add(name)
    ledger = Ledger(Mortal(shared, at, then), "experiment", max_restarts=max_restarts)
    return ledger, Queue(ledger, beats, source or Numbered(1), {"name": name})


def run_all(queue, ledger, end=lambda ledger, attempt: ledger.end(attempt, "completed", 1.0)) -> Iterator[int]:
    """Run attempts until there are none; yield their numbers."""
    while (attempt := queue.next()) is not None:
        yield attempt.number
        end(ledger, attempt)


def memory():
    return InMemoryStorage()
