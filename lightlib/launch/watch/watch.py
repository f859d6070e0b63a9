"""Watch: propagates failures, stop requests and hangs between ranks through the store."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from lightlib.launch.environment.detect import launcher_process
from lightlib.launch.watch import failure as failures
from lightlib.launch.watch.board import Board, StoreGoneError
from lightlib.launch.watch.end_of_data import EndOfData
from lightlib.launch.watch.failure import Failure, OtherRankError
from lightlib.launch.watch.first_failure import FirstFailure
from lightlib.launch.watch.hang_detector import HangDetector
from lightlib.launch.watch.hang_report import location_of_error
from lightlib.launch.watch.stop_point import END, Position
from lightlib.launch.watch.stop_requests import StopRequests
from lightlib.launch.watch.store_thread import StoreThread
from lightlib.launch.watch.timing import PRODUCTION, Timing

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's stubs do not export it

__all__ = ["END", "Failure", "OtherRankError", "Watch"]

CODES_OF_SIGNALS = (130, 143, -2, -15)
_SECONDS_TO_LOOK_AGAIN = (0.001, 0.1)


class Watch:
    """The watchdog of one process of a distributed run: a daemon thread with its own connection to the store.

    The thread works during a run, between `start` and `stop`; a later run starts it again. It costs the training loop
    nothing: the loop never calls it per batch.

    **Failures.** `fail` announces an exception; the first one counts, on all ranks. A rank whose main thread does not
    exit by itself in time is ended with exit code 1. Rank 0 writes the report of the first failure as its last lines,
    the other ranks at most one line.

    **Stops.** `request` requests one, `on_request` raises the flag on every rank, and `agree` returns the boundary at
    which the main thread leaves. The loop asks at EVERY boundary at which the flag is up, and leaves at the first
    boundary that is not before the answer (and where it may).

    **Hangs.** When a rank has made no progress for `timeout` seconds and waits in a collective, all ranks report where
    they are; the rank that blocks the rest is named, and the run ends.

    Args:
        store: A store that all ranks share, of this start of the processes.
        rank: Rank of this process.
        world_size: Number of processes.
        timeout: Seconds without progress after which a rank counts as hung.
        name: Distinguishes the watches that share a store.
        before_end: Called on this rank before its last lines are written, for a few seconds: rank 0's launcher waits
            for its processes, ends those that are left, and passes on their output.
        timing: The poll intervals and time limits.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        timeout: float,
        *,
        name: str = "",
        before_end: Callable[[], None] | None = None,
        timing: Timing = PRODUCTION,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.before_end = before_end
        self.timing = timing
        self._board = Board.of_watches(store, name)
        self._hang_detector = HangDetector(self._board, rank, world_size, timeout, timing.answer)
        self._end_of_data = EndOfData(self._board, rank, world_size)
        self._parent = launcher_process()
        self._round = 0
        self._running = False
        self._left = True  # whether the other ranks can know that the last run has ended on this one
        self._host_left = 0  # the last round that rank 0 has left
        self._stops: StopRequests | None = None
        self._position: Callable[[], Position] = tuple
        self._on_request: Callable[[str], None] = lambda kind: None
        self._first = FirstFailure()
        self._local_error: BaseException | None = None
        self._exited: dict[int, Failure] = {}  # ranks with exit code 0: a failure if the run still needs them
        self._handled_at: float | None = None  # when the main thread had received the failure
        self._handling = False
        self._news = -1
        self._look_again = False  # whether the next step reads the store although nothing is new
        self._ending, self._round_lock = threading.Lock(), threading.Lock()
        self._thread = StoreThread(self._step, self._on_store_gone, self._pause, timing.store)
        self._thread.start()
        atexit.register(self._at_exit)

    # a run
    def start(
        self, position: Callable[[], Position], on_request: Callable[[str], None], describe: Callable[[], str]
    ) -> None:
        """Begin to watch a run. All ranks call it the same number of times.

        Args:
            position: Returns the position of the run: integers that only grow, in the same order on all ranks. The last
                one grows by one from boundary to boundary, or an earlier one grows. Another thread reads it often: it
                must be cheap and take no locks. Best is the last boundary at which the loop checked the flag, set
                before the check: then all ranks that request a stop at one boundary leave at exactly that boundary,
                however different their speeds.
            on_request: Raises the flag of the given kind, "stop", "terminate" or "interrupt"; called by another thread,
                maybe more than once.
            describe: Returns the position in words: ``"step 7 (batch 7)"``.

        Raises:
            OtherRankError: A rank has failed in the meantime.
        """
        if self._first.failure is not None and self._first.lethal:
            raise OtherRankError(self._first.failure)
        with self._round_lock:
            self._round += 1
            self._local_error, self._handled_at, self._handling = None, None, False
            self._first.begin_run()
        patience = max(self.timing.arrival, 2 * self.timing.poll)
        self._stops = StopRequests(self._board, str(self._round), self.rank, self.world_size, patience)
        self._position, self._on_request = position, on_request
        self._hang_detector.begin(position, describe)
        self._end_of_data.begin(str(self._round))
        self._thread.run(lambda: self._board.write(f"{self._round}/here/{self.rank}", ""))
        self._look_again = True
        self._running = True
        if self._exited:
            self._thread.run(self._announce_exited)
        self._thread.wake()

    def stop(self) -> None:
        """End the run on this rank, after success or failure."""
        if not self._running:
            return

        def leave() -> None:
            self._running = False
            self._hang_detector.end()
            self._board.count(f"{self._round}/left", 1)
            self._board.write(f"{self._round}/left/{self.rank}", "")
            self._step_stops()

        self._left = self._thread.run(leave)
        self._running = False

    def close(self) -> None:
        """End the watch; nothing is sent or received any more."""
        atexit.unregister(self._at_exit)
        self.stop()
        if self.rank != 0 and self._first.failure is None:
            self._thread.run(self._depart)
        self._thread.close(self.timing.join)

    def _at_exit(self) -> None:
        """On rank 0, which may host the store, wait for the ranks that are in the run, and report how it ended."""
        self.stop()
        if not self._left:
            # The store was slow: without this the launcher would report the rank missing.
            self._thread.run(lambda: None)
        if self.rank == 0 and self._first.failure is None and self._round:
            self._wait_for_count(f"{self._round}/left", self.world_size, self.timing.linger)
            if (failure := self.look()) is not None:
                self.end(failure)
        if self.rank == 0 and self._first.failure is None:
            self._thread.run(lambda: self._board.write("closing", ""))
            self._wait_for_count("departed", self.world_size - 1, self.timing.departure)
        if self._first.failure is not None and failures.exit_code(self._local_error):  # of sys.exit, on this rank alone
            self.end(self._first.failure)
        self._wait_until_seen()
        self.close()

    def _wait_until_seen(self) -> None:
        """Give the other ranks the time to read why this one ends, if they depend on it."""
        failure = self._first.failure
        if failure is not None and self.rank in (0, failure.rank):  # 0 hosts the store
            time.sleep(max(0.0, self._first.known_at + 2 * self.timing.poll - time.monotonic()))

    def _wait_for_count(self, key: str, number: int, patience: float) -> None:
        """Wait until so many ranks have counted: without rank 0, which waits, there may be no store."""
        counted = [0]

        def count() -> None:
            counted[0] = self._board.count(key)

        deadline = time.monotonic() + patience
        while counted[0] < number and time.monotonic() < deadline:
            if not self._thread.run(count) or self._thread.gone:
                break
            time.sleep(self.timing.busy_poll)

    def _depart(self) -> None:
        """Make the last call of the store, which may end with rank 0; later ones would make torch print a trace."""
        self._thread.leave_store()
        self._board.count("departed", 1)

    # stops
    def request(self, kind: str) -> None:
        """Request a stop on all ranks. May be called from a signal handler.

        Args:
            kind: "stop", "terminate" or "interrupt".
        """
        if self._stops is not None:
            self._stops.request(kind)

    def agree(self, kind: str, position: Position) -> Position:
        """Return the boundary at which all ranks leave: the first that is not before it.

        Call it at every boundary at which the flag of that kind is up, with that boundary; once there is an answer it
        costs nothing. `END` if a rank has ended the run already: there is no boundary left to agree on.

        Raises:
            OtherRankError: A rank has failed in the meantime.
        """
        assert self._stops is not None, "a run has begun"
        consensus = self._stops[kind]
        if consensus.decided.is_set():
            return consensus.decision
        consensus.arrive(tuple(position))
        self._thread.wake()
        deadline = time.monotonic() + self.timeout
        while not consensus.decided.wait(0.05):
            if self._thread.gone and self._host_left == self._round:
                return END
            if self._first.failure is None and time.monotonic() > deadline:
                self._learn(Failure.lost(None, f"the ranks did not agree on a stop within {self.timeout:g} s"))
            if self._first.failure is not None:
                raise OtherRankError(self._first.failure)
        return consensus.decision

    def refuse(self, kind: str) -> None:
        """Cancel a stop request that the plan does not grant, so that there can be a new one.

        All ranks call it at the same boundary, not before the one that `agree` returned.
        """
        if self._stops is not None and self._stops.refuse(kind):
            self._look_again = True  # a faster rank may have requested it again

    # data
    def follow_data(self, given: Callable[[], int]) -> None:
        """Begin a pass through the data; `given` returns how many of its batches the main thread has received."""
        self._end_of_data.follow(given)

    def end_of_data(self, batches: int) -> dict[int, int]:
        """Wait until it is known whether the data of all ranks end after as many batches as here.

        Returns:
            Numbers of batches by rank, `end_of_data.MORE` for a rank that has more; empty if it cannot be known.

        Raises:
            OtherRankError: A rank has failed in the meantime.
        """
        outcomes: list[dict[int, int]] = []
        answered = threading.Event()

        def look() -> None:
            outcome = None if outcomes else self._end_of_data.outcome()
            if outcome is not None:
                outcomes.append(outcome)
                answered.set()

        self._thread.run(lambda: self._end_of_data.publish(batches))
        pause, asked_at = _SECONDS_TO_LOOK_AGAIN[0], time.monotonic()
        while not answered.wait(pause):
            if time.monotonic() - asked_at > 2 * self.timing.answer:  # no collective would notice a rank that is gone
                asked_at = time.monotonic() + 2 * self.timing.answer  # which is how long the answers may take
                self._hang_detector.ask_at_end_of_data()
            if self._first.failure is not None:
                raise OtherRankError(self._first.failure)
            if not self._thread.usable:
                return {}
            self._thread.run(look)
            pause = min(2 * pause, _SECONDS_TO_LOOK_AGAIN[1])
        return outcomes[0]

    # failures
    @property
    def failure(self) -> Failure | None:
        """The first failure, if this rank knows of one."""
        return self._first.failure

    def look(self) -> Failure | None:
        """Ask the store whether a rank has failed, even when no run is watched here."""
        self._thread.run(self._look_for_failure)
        return self._first.failure

    def fail(self, error: BaseException, lethal: bool = False) -> Failure:
        """Announce an exception of the main thread, unless another rank was first; return the first failure.

        For an error that only shows that another process is gone or late, wait a few seconds for the cause.

        Args:
            error: The exception.
            lethal: This process ends because of it; otherwise the user's program may catch it on all ranks and
                begin another run.
        """
        if not self._running and not self._first.lethal and not self._is_about(error):
            self._first.drop()
        if isinstance(error, OtherRankError):
            self._learn(error.failure)
        self._handling = True
        echo = failures.is_echo(error)
        if self._first.failure is None and echo:
            certain = failures.is_timeout(error) and self._running
            self._hang_detector.note_error(location_of_error(self.rank, error), certain)
            if certain:
                self._thread.wake()
                self._first.known.wait(self.timing.answer + 1)
            else:
                self._wait_for_reason()
        first = self._first.failure
        if first is None or (lethal and not self._first.lethal and first.rank == self.rank):
            local = Failure.of_echo(self.rank, error) if echo else Failure.of_error(self.rank, error)
            self._announce(first or local, lethal or not self._running)
            first = self._first.failure
        assert first is not None
        if first.rank == self.rank:
            self._local_error = error
            failures.write_error_file(first, self.rank)
        self._handled_at = time.monotonic()
        return first

    def _is_about(self, error: BaseException) -> bool:
        """Whether an error comes from the failure that is known."""
        return failures.is_echo(error) or self._local_error in failures.chain(error)

    def report_death(self, rank: int, returncode: int, tail: str = "") -> None:
        """Announce that a process ended without reporting why; called by its launcher.

        Args:
            rank: Rank of the process.
            returncode: As `subprocess` has it: negative for a signal. With 0 it is a failure only if the rank was in a
                run, or is missing from the next one.
            tail: The last lines that it wrote to stderr.
        """
        if self._stops is not None and self._stops.ending and returncode in CODES_OF_SIGNALS:
            return
        failure = Failure.of_death(rank, returncode, tail)
        if returncode == 0:
            self._exited[rank] = failure
            self._thread.run(self._announce_exited)
        else:
            self._announce(failure, lethal=True)

    def _announce_exited(self) -> None:
        """Announce the first rank that has ended with exit code 0 before this run has ended on it."""
        for rank, failure in list(self._exited.items()):
            if self._running and self._board.read(f"{self._round}/left/{rank}") is None:
                self._announce(replace(failure, time=time.time()), lethal=True)
                return

    def install(self) -> None:
        """Replace `sys.excepthook`: an uncaught exception ends all ranks, with the right last lines."""
        before = sys.excepthook

        def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if self._thread.closed or not isinstance(error, Exception):
                before(kind, error, trace)
                return
            self.end(self.fail(error, lethal=True))

        sys.excepthook = uncaught

    def end(self, failure: Failure) -> NoReturn:
        """Write the last lines of this process and end it with exit code 1."""
        self._ending.acquire()  # never released: the other thread that comes here sleeps until the end
        is_first = failure.rank == self.rank
        failures.write_error_file(failure, self.rank)
        if is_first:
            self._thread.run_here_or_there(lambda: self._board.write(f"gone/{self.rank}", ""))
        elif "TORCHELASTIC_ERROR_FILE" in os.environ and failure.kind in ("exception", "hang"):
            self._wait_until_gone(failure)
        self._wait_until_seen()
        in_full = self.rank == 0 or not self._first.in_store or (is_first and not self._first.in_run)
        text = failure.text if in_full else f"Rank {self.rank} ends: {failure.summary.rstrip('.…')}."
        interrupted = failure.kind == "interrupt"
        # of the signal that ends this process, if the failure is a rank that obeyed it sooner
        of_signal = self._stops.signal_code if failure.kind == "lost" and self._stops is not None else 0
        code = 130 if interrupted else failures.exit_code(self._local_error) or of_signal or 1
        failures.end_process("" if interrupted else text, self.before_end, code, self.timing)

    def _wait_until_gone(self, failure: Failure) -> None:
        """Let the rank that failed first end first: torchrun takes it for the root cause."""
        gone = threading.Event()

        def look() -> None:
            if self._board.read(f"gone/{failure.rank}") is not None:
                gone.set()

        deadline = self._first.known_at + 2 * self.timing.grace + 1
        while not gone.is_set() and time.monotonic() < deadline and self._thread.run_here_or_there(look):
            time.sleep(self.timing.look)
        time.sleep(self.timing.summary)

    def _wait_for_reason(self) -> None:
        begun = time.monotonic()
        while not self._first.known.wait(self.timing.look) and not self._thread.gone:
            if time.monotonic() - begun >= self.timing.reason:
                break
            self._thread.run(self._look_for_failure)

    def _announce(self, failure: Failure, lethal: bool) -> None:
        def write() -> None:
            first = replace(failure, round=self._round).to_json()
            if self._running:
                first = self._board.write_first(f"{self._round}/failure", first)
            if lethal:
                first = self._board.write_first("failure", first)
            self._learn(Failure.from_json(first), lethal, in_store=True)

        if not self._thread.run_here_or_there(write):
            self._learn(failure, lethal)

    def _learn(self, failure: Failure, lethal: bool = False, in_store: bool = False) -> None:
        self._first.learn(failure, self._running, lethal, in_store)

    def _look_for_failure(self) -> None:
        now = self._round
        note, lethal = self._board.read("failure"), True
        if note is None and now:
            note, lethal = self._board.read(f"{now}/failure"), False
        with self._round_lock:  # the program may have caught the failure of `now` and begun another run
            if note is not None and (lethal or now == self._round):
                self._learn(Failure.from_json(note), lethal, in_store=True)

    # the thread
    def _pause(self) -> float:
        stop_pending = self._stops is not None and self._stops.pending
        busy = self._hang_detector.pending or self._end_of_data.pending or stop_pending
        return self.timing.busy_poll if self._running and busy else self.timing.poll

    def _on_store_gone(self, error: StoreGoneError) -> None:
        if self._running and self._host_left != self._round:
            self._learn(Failure.lost(None, f"the process that hosts the store of the ranks is gone ({error})"))

    def _step(self) -> None:
        self._end_when_due()
        if self._thread.gone:
            return
        self._thread.run_tasks()
        if self._first.failure is not None and self.rank != 0:
            return  # rank 0 may have ended, and the store with it
        again, self._look_again = self._look_again, False  # first: one that is set from here on is for the next step
        news = self._board.news()
        changed = again or news != self._news
        if changed:
            self._look_for_failure()
            if (now := self._round) and self._board.read(f"{now}/left/0") is not None:
                self._host_left = now
            if self.rank != 0 and self._board.read("closing") is not None:
                self._depart()
                return
        if self._running and (changed or (self._stops is not None and self._stops.pending)):
            self._step_stops()
        if self._running and (changed or self._end_of_data.pending):
            self._end_of_data.step()
        verdict = self._hang_detector.step(changed) if self._first.failure is None else None
        self._news = news
        if verdict is not None:
            ranks, text = verdict
            place = "end of the data at" if self._hang_detector.at_end_of_data else "collective in"
            summary = f"{_name(ranks)} did not reach the {place} which the other ranks wait"
            self._announce(Failure.hang(ranks[0], summary, text), lethal=True)

    def _step_stops(self) -> None:
        if self._stops is None:
            return
        for missing in self._stops.step(self._on_request, self._position, self.timing.answer):
            ranks = [rank for rank in missing if self._is_here(rank)]
            if ranks:
                summary = f"{_name(ranks)} did not answer a stop request for {self.timing.answer:g} s"
                self._announce(Failure.lost(ranks[0], summary), lethal=True)

    def _is_here(self, rank: int) -> bool:
        """Whether a rank has begun this run; before that it cannot answer."""
        return self._board.read(f"{self._round}/here/{rank}") is not None

    def _end_when_due(self) -> None:
        if self._parent and os.getppid() != self._parent:
            self._learn(Failure.lost(0, "the process that started this one, rank 0's, is gone"), lethal=True)
            self._running = True  # also between two runs: the launcher that would use this process is gone
            self._parent = 0
        failure = self._first.failure
        if failure is None or (self._handling and self._handled_at is None):
            return
        if not self._running and failure.round <= self._round:
            return  # this rank has ended that run: its program may continue, and learns of the failure in the next run
        grace = self.timing.grace
        if failure.kind in ("hang", "interrupt"):
            grace = min(self.timing.short_grace, grace)
        if time.monotonic() - (self._handled_at or self._first.known_at) > grace:
            self.end(failure)


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}"
