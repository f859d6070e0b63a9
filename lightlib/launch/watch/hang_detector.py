"""HangDetector: when a rank makes no progress, collects the location of every rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from lightlib.launch.watch.board import Board
from lightlib.launch.watch.hang_report import RankLocation, cpu_clock, cpu_seconds, location_of_thread, verdict
from lightlib.launch.watch.stop_point import Position


class HangDetector:
    """Detects hangs for the watch; used by the watch thread.

    After `timeout` seconds without progress, a waiting rank queries the other ranks, which have `answer` seconds; at
    the end of its data sooner, and they have twice as long.
    """

    def __init__(self, board: Board, rank: int, world_size: int, timeout: float, answer: float) -> None:
        self.certain = False  # a collective has failed here, so no rank can continue
        self.error_location: RankLocation | None = None  # where it failed
        self._board = board
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout
        self._answer = answer
        self._position: Callable[[], Position] | None = None
        self._describe: Callable[[], str] = str
        self._thread = threading.get_ident()
        self._clock: int | None = None
        self._number = 0
        self.pending = False  # whether this rank waits for answers
        self.at_end_of_data = False  # whether it last asked because it waits there
        self._asks = False  # whether it is to ask because of that
        self._answered_at: float | None = None
        self._last: Position = ()
        self._since = time.monotonic()
        self._computed: tuple[float, float] | None = None  # seconds of computing, and when that was read
        self._busy = False

    def note_error(self, location: RankLocation, certain: bool) -> None:
        """Note where a collective failed; if `certain`, this rank cannot continue."""
        self.error_location = location
        self.certain = self.certain or certain

    def ask_at_end_of_data(self) -> None:
        """Find out whether all ranks are there: the main thread waits for them, outside of a collective."""
        self._asks = True

    def begin(self, position: Callable[[], Position], describe: Callable[[], str]) -> None:
        """Begin a run; the calling thread is the one to watch."""
        self.certain, self.error_location, self._computed, self._busy = False, None, None, False
        self._describe, self._last, self._since = describe, (), time.monotonic()
        self._thread, self._clock = threading.get_ident(), cpu_clock()
        self._position = position

    def end(self) -> None:
        """End the run; other ranks may still query this one."""
        self._position = None

    def step(self, news: bool) -> tuple[list[int], str] | None:
        """Do the next step without waiting; return the verdict if this rank has reached one."""
        self._note_progress()
        if self.pending:
            return self._conclude()
        if self._answered_at is None and (self._asks or self._is_stuck()):
            self.at_end_of_data, self._asks = self._asks, False
            path = f"inquiry/{self._number}"
            self.pending = self._board.write_first(f"{path}/by", str(self._rank)) == str(self._rank)
            news = True
        if news or self._answered_at is not None:
            self._answer_ranks()
        return None

    def _note_progress(self) -> None:
        position = self._position
        if position is not None and (now := position()) != self._last:
            self._last, self._since = now, time.monotonic()
        computed, now_at = cpu_seconds(self._clock), time.monotonic()
        if computed is not None and (self._computed is None or now_at - self._computed[1] > 0.2):
            before, self._computed = self._computed, (computed, now_at)
            self._busy = before is not None and (computed - before[0]) / (now_at - before[1]) > 0.5

    def _is_stuck(self) -> bool:
        if self._position is None:
            return False
        if self.certain:
            return True
        return time.monotonic() - self._since > self._timeout and bool(self._location().waits)

    def _location(self) -> RankLocation:
        location = self.error_location or location_of_thread(self._rank, self._thread)
        if self._busy and "(backward)" in location.waits:
            location = replace(location, waits="", does="computing gradients (backward)")
        still = time.monotonic() - self._since
        if self._position is None:
            return replace(location, still=still)
        try:
            at = self._describe()
        except Exception:  # noqa: BLE001  the function belongs to the run, which may be half built
            at = f"position {self._last}"
        return replace(location, position=self._last, at=at, still=still)

    def _answer_ranks(self) -> None:
        path = f"inquiry/{self._number}"
        if self._answered_at is None and self._board.read(f"{path}/by") is not None:
            self._answered_at = time.monotonic()
            self._board.write(f"{path}/place/{self._rank}", self._location().to_json())
            self._board.count(f"{path}/answers", 1)
        if self._answered_at is None:
            return
        late = time.monotonic() - self._answered_at > 3 * self._answer  # the rank that asked is gone
        if late or self._board.read(f"{path}/done") is not None:
            self._next()
            self._answer_ranks()

    def _conclude(self) -> tuple[list[int], str] | None:
        path = f"inquiry/{self._number}"
        if self._answered_at is None:
            self._answer_ranks()
        assert self._answered_at is not None
        late = time.monotonic() - self._answered_at > self._answer * (1 + self.at_end_of_data)
        if self._board.count(f"{path}/answers") < self._world_size and not late:
            return None
        notes = [self._board.read(f"{path}/place/{rank}") for rank in range(self._world_size)]
        locations = [RankLocation.from_json(note) for note in notes if note is not None]
        reached = verdict(locations, self._world_size, self._timeout, self.certain, self.at_end_of_data)
        if reached is None and not self.at_end_of_data:
            self._since = time.monotonic() - self._timeout / 2  # ask again after half the timeout
        elif reached is not None:
            self.certain = False
        self._board.write(f"{path}/done", "")
        self._next()
        return reached

    def _next(self) -> None:
        self._number, self.pending, self._answered_at = self._number + 1, False, None
