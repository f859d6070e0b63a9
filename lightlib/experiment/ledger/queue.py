"""Queue: the next attempt for a worker, from the ledger alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lightlib.experiment.ledger.attempt import Attempt, Entry
from lightlib.experiment.ledger.beats import Watch
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.snapshot import Snapshot


class Source(Protocol):
    """The next steps of an experiment as functions of the ledger: a searcher."""

    def next_entry(self, snapshot: Snapshot) -> Entry | None:
        """Return the attempt to add now; None if there is none, or as many trials are unfinished as may be."""

    def is_done(self, snapshot: Snapshot) -> bool:
        """Whether nothing will ever be added again, given that no trial is unfinished."""


class Queue:
    """Gives a worker its next attempt; there is no driver, and every worker does the same.

    Args:
        ledger: Of the experiment.
        watch: Decides which owners are dead.
        source: Decides what is added.
        owner: The identity of this worker, as plain values.
        accepts: Whether this worker may run a trial, given the ledger and its number. Default: all.
    """

    def __init__(
        self,
        ledger: Ledger,
        watch: Watch,
        source: Source,
        owner: Mapping[str, Any],
        accepts: Callable[[Snapshot, int], bool] = lambda snapshot, trial: True,
    ) -> None:
        self._ledger, self._watch, self._source, self._owner = ledger, watch, source, owner
        self._accepts = accepts
        self._missed_turn = False  # in the last call of `next`

    def next(self, *, patient: bool = False) -> Attempt | None:
        """Return an attempt that this worker now owns; None if there is nothing to do at this moment.

        Args:
            patient: Whether this worker has time to wait for its turn. Default False: it has trials to look after.

        Raises:
            StorageUnreachable: The storage does not answer.
        """
        with self._ledger.turns.turn(patient=patient) as has_turn:
            self._missed_turn = not has_turn
            return self._next() if has_turn else None

    def is_done(self) -> bool:
        """Whether the experiment has ended; False also right after a missed turn, when many workers are busy."""
        if self._missed_turn:
            self._missed_turn = False
            return False
        snapshot = self._ledger.snapshot()
        return not snapshot.unfinished() and not snapshot.to_continue() and self._source.is_done(snapshot)

    def _next(self) -> Attempt | None:
        while True:
            snapshot = self._ledger.snapshot()
            if self._clean(snapshot):
                continue
            for attempt in self._waiting(snapshot):
                if self._take(attempt, snapshot):
                    return attempt
            entry = self._next_entry(snapshot)
            if entry is None:
                return None
            if not self._accepts(snapshot, entry.trial):
                self._ledger.add(entry)  # for another worker
            elif (added := self._added(self._ledger.add(entry, self._owner), snapshot)) is not None:
                return added

    def _added(self, identifier: int, before: Snapshot) -> Attempt | None:
        """Return the attempt that this worker added, if it holds: another one may have added the same meanwhile."""
        added = self._ledger.fresh(identifier)
        if added.number == before.next_number:
            return added
        if added.number in {void.number for void in self._ledger.snapshot().void}:
            self._ledger.discard(added)
            return None
        return added

    def _next_entry(self, snapshot: Snapshot) -> Entry | None:
        for attempt in snapshot.to_continue():  # ended by another program, or by an owner who died before it added it
            reason = attempt.ended_as
            assert reason in ("lost", "interrupted")
            return attempt.successor(reason)
        return self._source.next_entry(snapshot)

    def _clean(self, snapshot: Snapshot) -> bool:
        """End void attempts, and those of dead owners; return whether there were any."""
        void, cleaned = {attempt.number for attempt in snapshot.void}, False
        for attempt in snapshot.attempts:
            dead = attempt.state == "running" and self._watch.is_dead(attempt)
            if attempt.number in void and (dead or attempt.state == "waiting"):
                self._ledger.discard(attempt)
                cleaned = True
            elif dead:
                self._ledger.take_over(attempt)
                cleaned = True
        return cleaned

    def _waiting(self, snapshot: Snapshot) -> list[Attempt]:
        """Return the attempts to claim, the trials that have begun first."""
        last = (chain[-1] for chain in snapshot.chains.values())
        waiting = [attempt for attempt in last if attempt.state == "waiting" and self._accepts(snapshot, attempt.trial)]
        return sorted(waiting, key=lambda attempt: (attempt.attempt == 0, attempt.number))

    def _take(self, attempt: Attempt, snapshot: Snapshot) -> bool:
        before = None if attempt.before is None else snapshot.by_number[attempt.before]
        if before is not None and before.state == "running":
            return False  # its owner may live; if not, `_clean` ends it
        return self._ledger.claim(attempt, self._owner)
