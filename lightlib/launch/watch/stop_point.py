"""StopConsensus: chooses the boundary at which all ranks grant a request, without a collective."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

from lightlib.launch.watch.board import Board

Position = tuple[int, ...]
END: Position = (sys.maxsize,)  # after every boundary: the run ends by itself


def next_after(position: Position) -> Position:
    """Return the first boundary that can follow `position`: its last number plus one.

    It is greater than `position` and at most the next boundary, which raises the last number too, or an earlier one.
    """
    return (*position[:-1], position[-1] + 1)


class StopConsensus:
    """One stop request, as this rank sees it. The watch thread calls `step`, the main thread everything else.

    Every rank publishes a *bound*: a boundary that its main thread does not pass before there is a decision. The watch
    thread FIRST raises the flag of the main thread and THEN reads its position: the main thread sees the flag at the
    boundary after that position at the latest, asks here, and waits. So `next_after(position)` is a bound. A main
    thread that waits here publishes the exact boundary at which it waits. When all bounds are published, rank 0's watch
    thread chooses the greatest: no rank is past it, and every rank reaches it, because those that wait at earlier
    boundaries continue. No rank waits for a main thread that waits in a collective.

    Within `patience` seconds main threads may still arrive at an earlier boundary than their watch threads could
    promise, if all ranks request the same stop at the same boundary. `path` is the prefix of all keys.
    """

    def __init__(self, kind: str, path: str, rank: int, world_size: int, patience: float) -> None:
        self.kind = kind
        self.path = path
        self.rank = rank
        self.world_size = world_size
        self.patience = patience
        self.requested_at: float | None = None
        self.decided = threading.Event()
        self.decision: Position = END
        self.requested_here = False  # by this process; may be set in a signal handler: without a lock
        self._exact: Position | None = None
        self._bound: Position | None = None
        self._arrived = False
        self._complete_at: float | None = None

    @property
    def pending(self) -> bool:
        """Whether it is requested and not decided."""
        return (self.requested_here or self.requested_at is not None) and not self.decided.is_set()

    def request(self) -> None:
        """Request the stop. Safe in a signal handler."""
        self.requested_here = True

    def arrive(self, position: Position) -> None:
        """Note that the main thread waits at this boundary, and request the stop; the first call counts."""
        self._exact = self._exact or position
        self.requested_here = True

    def step(
        self, board: Board, raise_flag: Callable[[str], None], position: Callable[[], Position], left: str
    ) -> None:
        """Do the next step without waiting; `left` is the key of the number of ranks that have ended this run."""
        if self.decided.is_set() or not self._is_requested(board):
            return
        if self._bound is None:
            raise_flag(self.kind)
            self._publish(board, position)
        elif not self._arrived and self._exact is not None:
            self._arrived = True
            if self._exact < self._bound:
                board.write(f"{self.path}/arrived/{self.rank}", json.dumps(self._exact))
        some_left = board.count(left) > 0  # read before the decision: a rank that left because of it wrote it first
        note = board.read(f"{self.path}/decision")
        if note is None and self.rank == 0:
            note = self._decide(board, some_left)
        if note is not None:
            self.decision = tuple(json.loads(note))
            self.decided.set()
        elif some_left:
            self.decided.set()

    def missing(self, board: Board) -> list[int]:
        """Return the ranks that have not published a bound; rank 0 if only its decision is missing."""
        ranks = [r for r in range(self.world_size) if board.read(f"{self.path}/bound/{r}") is None]
        return ranks or [0]

    def _is_requested(self, board: Board) -> bool:
        if self.requested_at is None:
            if self.requested_here:
                board.write(f"{self.path}/asked", "")
            elif board.read(f"{self.path}/asked") is None:
                return False
            self.requested_at = time.monotonic()
        return True

    def _publish(self, board: Board, position: Callable[[], Position]) -> None:
        exact = self._exact
        bound = next_after(position()) if exact is None else exact
        board.write(f"{self.path}/bound/{self.rank}", json.dumps([bound, exact is not None]))
        board.count(f"{self.path}/bounds", 1)
        self._bound, self._arrived = bound, exact is not None

    def _decide(self, board: Board, some_left: bool) -> str | None:
        if some_left:  # it published nothing, or a boundary that it never reaches
            return board.write_first(f"{self.path}/decision", json.dumps(END))
        if board.count(f"{self.path}/bounds") < self.world_size:
            return None
        self._complete_at = self._complete_at or time.monotonic()
        bounds, certain = [], []
        notes = board.read_all([f"{self.path}/bound/{r}" for r in range(self.world_size)])
        for rank, (bound, exact) in enumerate(map(json.loads, notes)):
            arrived = None if exact else board.read(f"{self.path}/arrived/{rank}")
            bounds.append(tuple(bound if arrived is None else json.loads(arrived)))
            if exact or arrived is not None:
                certain.append(bounds[-1])
        greatest = max(bounds)
        if greatest not in certain and time.monotonic() - self._complete_at < self.patience:
            return None
        return board.write_first(f"{self.path}/decision", json.dumps(greatest))
