"""Attempts: ranks that torchrun restarts agree on keys of their own in the store that it keeps."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile
from typing import Any

from lightlib.launch.environment.detect import Environment
from lightlib.launch.watch.board import Board, StoreGoneError
from lightlib.launch.watch.failure import Failure, end_process, write_error_file
from lightlib.strategies.group.waiting import Waiting, named

_LATEST = "lightlib/attempt"
_SECONDS_BETWEEN_LOOKS = 0.25
_own: set[str] = set()  # earlier attempts of this process, which may make a second group


def agree_on_attempt(store: Any, place: Environment, waiting: Waiting) -> str:
    """Return the name of this attempt: the same on all its ranks, and never used before.

    What is in the store may come from any earlier attempt, whose processes were killed at any moment, and a message of
    such a process may still arrive. Nothing of it is believed: rank 0 draws a random name, each rank answers under that
    name with a random token, and rank 0 lists the tokens under it. A list with this process's own token can only have
    been written by a rank 0 that has read it. docs/decisions/0023 has the full argument.

    Raises:
        LightlibError: Names the ranks that have not come.
    """
    attempt = _Attempt(store, place, waiting)
    name = attempt.lead() if place.rank == 0 else attempt.follow()
    _own.add(name)
    return name


class _Attempt:
    """The agreement, as one process sees it."""

    def __init__(self, store: Any, place: Environment, waiting: Waiting) -> None:
        self.store, self.place, self.waiting = store, place, waiting

    def lead(self) -> str:
        """Rank 0: publish a name, wait for the token of each rank, and list them."""
        name, size = secrets.token_hex(8), self.place.world_size
        before = self._latest()
        if before is not None:
            self._end(before[0])
        missing = list(range(1, size))
        while True:
            if self._latest() != (name, size):  # the last message of a killed rank 0 may arrive late
                self.store.set(_LATEST, f"{name}/{size}")
            missing = [*dropwhile(lambda rank: self.store.check([_here(name, rank)]), missing)]
            if not missing:
                break
            if self.waiting.due and (missing := self._all_missing(name)):
                self.waiting.report(named(missing, self.place), speaker=True)
            self.waiting.pause()
        tokens = [self.store.get(_here(name, rank)).decode() for rank in range(1, size)]
        self.store.set(_members(name), json.dumps(["", *tokens]))
        return name

    def follow(self) -> str:
        """Another rank: answer each name that is published, until the list of one has this process's token."""
        token, rank = secrets.token_hex(8), self.place.rank
        answered: list[str] = []
        over: set[str] = set()
        while True:
            latest = self._latest()
            if latest is not None and latest[1] == self.place.world_size and latest[0] not in {*answered, *over}:
                if self._read(_members(latest[0])) is None:  # else it is complete without this process
                    self.store.set(_here(latest[0], rank), token)
                answered.append(latest[0])
            for name in list(answered):
                members = self._read(_members(name))
                if members is None:
                    continue
                if json.loads(members)[rank] != token:
                    self._end(name)
                elif Board.of_watches(self.store, name).read("failure") is None:  # no rank was restarted since
                    return name
                answered.remove(name)
                over.add(name)
            if self.waiting.due:
                self._report(answered)
            self.waiting.pause()

    def _latest(self) -> tuple[str, int] | None:
        """Return the name that was published last, and for how many ranks."""
        text = self._read(_LATEST)
        if text is None:
            return None
        name, _, size = text.partition("/")
        return name, int(size)

    def _read(self, key: str) -> str | None:
        return self.store.get(key).decode() if self.store.check([key]) else None

    def _all_missing(self, name: str) -> list[int]:
        return [rank for rank in range(1, self.place.world_size) if not self.store.check([_here(name, rank)])]

    def _report(self, answered: list[str]) -> None:
        """Report which ranks are missing; once rank 0 has arrived, it does so itself."""
        missing = self._all_missing(answered[-1]) if answered else []
        if missing:
            self.waiting.report(named(missing, self.place), speaker=False)
        else:
            missing_rank = f"rank 0 at {self.place.address}:{self.place.port}"
            self.waiting.report(missing_rank, speaker=self.place.local_rank == 0)

    def _end(self, name: str) -> None:
        """End the rest of an earlier attempt: this process replaces one of its ranks."""
        if name in _own:
            return
        failure = Failure.lost(
            self.place.rank, f"rank {self.place.rank} was restarted, so its process in this attempt is gone"
        )
        Board.of_watches(self.store, name).write_first("failure", failure.to_json())


def _here(name: str, rank: int) -> str:
    return f"lightlib/{name}/here/{rank}"


def _members(name: str) -> str:
    return f"lightlib/{name}/members"


@contextmanager
def ended_if_replaced(store: Any, name: str, rank: int) -> Iterator[None]:
    """End this process when one of the attempt is started again while, inside, it waits within torch for that one."""
    done = threading.Event()
    board = Board.of_watches(store, name)

    def look() -> None:
        while not done.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                message = board.read("failure")
            except StoreGoneError:  # torch detects it too, and raises where it can be caught
                return
            if message is not None and not done.is_set():
                failure = Failure.from_json(message)
                write_error_file(failure, rank)
                end_process(failure.text)

    thread = threading.Thread(target=look, name="lightlib attempt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
