"""Watch: what processes tell each other outside of collectives: failures, wishes to stop, hangs."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import NoReturn

from lightlib.launch.watch import failure as failures
from lightlib.launch.watch.board import Board, Store, StoreGoneError
from lightlib.launch.watch.ends import Ends
from lightlib.launch.watch.failure import Failure, OtherRankError
from lightlib.launch.watch.hang_detector import HangDetector
from lightlib.launch.watch.hang_report import place_of_error
from lightlib.launch.watch.stop_point import END, Position, StopConsensus
from lightlib.launch.watch.timing import PRODUCTION, Timing

__all__ = ["END", "Failure", "OtherRankError", "Watch"]

KINDS = ("stop", "terminate", "interrupt")
CODES_OF_SIGNALS = (130, 143, -2, -15)
_SECONDS_TO_LOOK_AGAIN = (0.001, 0.1)


class Watch:
    """One per process of a distributed run: a daemon thread and a client of the store that is its own.

    The thread works while a run runs, between `start` and `stop`; a later run starts it again. It costs the training
    loop nothing: nothing here is called per batch.

    **Failures.** `fail` announces an exception; the first one counts, on all ranks. A rank whose main thread does not
    get out by itself in time is ended with exit code 1. Rank 0 writes the text of the first failure as its last lines,
    others at most one line.

    **Stops.** `request` wishes for one, `on_request` raises the flag on every rank, and `agree` tells the main thread
    at which boundary to leave. The loop asks at EVERY boundary at which the flag is up, and leaves at the first
    boundary that is not before the answer (and where it may).

    **Hangs.** When a rank has not moved for `timeout` seconds and waits in a collective, all ranks say where they
    are; the one that keeps the others waiting is named, and the run ends.

    Args:
        store: A store that all ranks share, of this start of the processes.
        rank: This process.
        world_size: Number of processes.
        timeout: Seconds without progress after which a rank hangs.
        name: Tells apart the watches that share a store.
        before_end: Called on this rank before its last lines are written, for a few seconds: rank 0's launcher waits
            for its processes, ends those that are left, and hands on what they wrote.
        timing: How often it looks, and how long it waits for what.
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
        self._inquiry = HangDetector(self._board, rank, world_size, timeout, timing.answer)
        self._ends = Ends(self._board, rank, world_size)
        self._parent = _launcher()
        self._round = 0
        self._running = False
        self._left = True  # whether the others can know that the last run has ended on this rank
        self._closed = self._store_gone = False
        self._host_left = 0  # the last round which rank 0 has left
        self._agreements: dict[str, StopConsensus] = {}
        self._position: Callable[[], Position] = tuple
        self._on_request: Callable[[str], None] = lambda kind: None
        self._failure: Failure | None = None
        self._lethal = False
        self._own_error: BaseException | None = None
        self._known = threading.Event()
        self._known_at = 0.0
        self._known_in_run = False
        self._told = False  # whether it is in the store, for rank 0 to tell
        self._ended_well: dict[int, Failure] = {}  # what to announce of ranks with exit code 0 if they are missed
        self._handled_at: float | None = None  # when the main thread had the failure in its hands
        self._handling = False
        self._news = -1
        self._tasks: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._wake = threading.Event()
        self._ending, self._turning = threading.Lock(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="lightlib-watch", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    # a run
    def start(
        self, position: Callable[[], Position], on_request: Callable[[str], None], describe: Callable[[], str]
    ) -> None:
        """Begin to watch a run. All ranks call it the same number of times.

        Args:
            position: Where the run is: integers that only grow, in the same order on all ranks. The last one grows by
                one from boundary to boundary, or an earlier one grows. Read by another thread, often: cheap and
                without locks. Best is the last boundary at which the loop looked for the flag, written before it
                looked: then all ranks that wish for a stop at one boundary leave at that very boundary, however
                unequal their speeds.
            on_request: Raises the flag of the given kind, "stop", "terminate" or "interrupt"; called by another thread,
                maybe more than once.
            describe: The position in words: ``"step 7 (batch 7)"``.

        Raises:
            OtherRankError: A rank has failed in the meantime.
        """
        if self._failure is not None and self._lethal:
            raise OtherRankError(self._failure)
        with self._turning:
            self._round += 1
            self._failure, self._own_error, self._handled_at = None, None, None
            self._handling = self._told = False
            self._known.clear()
        self._agreements = {kind: self._agreement(kind, 0) for kind in KINDS}
        self._position, self._on_request = position, on_request
        self._inquiry.begin(position, describe)
        self._ends.begin(str(self._round))
        self._do(lambda: self._board.write(f"{self._round}/here/{self.rank}", ""))
        self._news = -1
        self._running = True
        if self._ended_well:
            self._do(self._miss)
        self._wake.set()

    def stop(self) -> None:
        """The run is over on this rank, well or not."""
        if not self._running:
            return

        def leave() -> None:
            self._running = False
            self._inquiry.end()
            self._board.count(f"{self._round}/left", 1)
            self._board.write(f"{self._round}/left/{self.rank}", "")
            self._step_agreements()

        self._left = self._do(leave)
        self._running = False

    def close(self) -> None:
        """End the watch; nothing is told or heard any more."""
        atexit.unregister(self._at_exit)
        self.stop()
        self._closed = True
        self._wake.set()
        self._thread.join(self.timing.join)

    def _at_exit(self) -> None:
        """Rank 0, which may keep the store, waits for those that are in the run, and says how that ended."""
        self.stop()
        if not self._left:
            self._do(lambda: None)  # the store was slow: its launcher would miss a rank that ends without a word
        if self.rank == 0 and self._failure is None and self._round:
            self._linger()
            if (failure := self.look()) is not None:
                self.end(failure)
        if self._failure is not None and failures.exit_code(self._own_error):  # of sys.exit, on this rank alone
            self.end(self._failure)
        self._let_see()
        self.close()

    def _let_see(self) -> None:
        """Give the others the time to see why this rank ends, where they need it for that."""
        if self._failure is not None and self.rank in (0, self._failure.rank):  # 0 keeps the store
            time.sleep(max(0.0, self._known_at + 2 * self.timing.poll - time.monotonic()))

    def _linger(self) -> None:
        """Without rank 0 there may be no store: the others are let out first."""
        counted = [0]

        def count() -> None:
            counted[0] = self._board.count(f"{self._round}/left")

        deadline = time.monotonic() + self.timing.linger
        while counted[0] < self.world_size and time.monotonic() < deadline and self._do(count) and not self._store_gone:
            time.sleep(self.timing.busy_poll)

    # stops
    def request(self, kind: str) -> None:
        """Wish for a stop on all ranks. May be called from a signal handler.

        Args:
            kind: "stop", "terminate" or "interrupt".
        """
        if kind in self._agreements:
            self._agreements[kind].wished = True

    def agree(self, kind: str, position: Position) -> Position:
        """Return the boundary at which all ranks leave: the first that is not before it.

        To be called at every boundary at which the flag of that kind is up, with that boundary; once there is an
        answer it costs nothing. `END` when a rank has ended the run already: there is no boundary left to agree on.

        Raises:
            OtherRankError: A rank has failed in the meantime.
        """
        agreement = self._agreements[kind]
        if agreement.decided.is_set():
            return agreement.decision
        agreement.exact = agreement.exact or tuple(position)
        agreement.wished = True
        self._wake.set()
        deadline = time.monotonic() + self.timeout
        while not agreement.decided.wait(0.05):
            if self._store_gone and self._host_left == self._round:
                return END
            if self._failure is None and time.monotonic() > deadline:
                self._learn(Failure.lost(None, f"the ranks did not agree on a stop within {self.timeout:g} s"))
            if self._failure is not None:
                raise OtherRankError(self._failure)
        return agreement.decision

    def refuse(self, kind: str) -> None:
        """Forget a wish that the plan does not grant, so that there can be a new one.

        To be called by all ranks at the same boundary, not before the one that `agree` returned.
        """
        before = self._agreements.get(kind)
        if before is not None and before.decided.is_set():
            attempt = int(before.path.rpartition("/")[2]) + 1
            self._agreements[kind] = self._agreement(kind, attempt)
            self._news = -1  # a rank that was faster may have asked again

    def _agreement(self, kind: str, attempt: int) -> StopConsensus:
        path = f"{self._round}/{kind}/{attempt}"
        patience = max(self.timing.arrival, 2 * self.timing.poll)
        return StopConsensus(kind, path, self.rank, self.world_size, patience)

    # data
    def follow_data(self, given: Callable[[], int]) -> None:
        """A pass through the data begins; `given` returns how many batches of it the main thread has been given."""
        self._ends.follow(given)

    def end_of_data(self, batches: int) -> dict[int, int]:
        """Wait until it is known whether the data of all ranks end after as many batches as here.

        Returns:
            Numbers of batches by rank, `ends.MORE` where there are more; empty when it cannot be known.

        Raises:
            OtherRankError: A rank has failed in the meantime.
        """
        found: list[dict[int, int]] = []
        known = threading.Event()

        def look() -> None:
            outcome = None if found else self._ends.outcome()
            if outcome is not None:
                found.append(outcome)
                known.set()

        self._do(lambda: self._ends.publish(batches))
        pause = _SECONDS_TO_LOOK_AGAIN[0]
        while not known.wait(pause):
            if self._failure is not None:
                raise OtherRankError(self._failure)
            if self._store_gone or self._closed or not self._thread.is_alive():
                return {}
            self._do(look)
            pause = min(2 * pause, _SECONDS_TO_LOOK_AGAIN[1])
        return found[0]

    # failures
    @property
    def failure(self) -> Failure | None:
        """The first failure, when this rank knows of one."""
        return self._failure

    def look(self) -> Failure | None:
        """Ask the store whether a rank has failed, also when no run is watched here."""
        self._do(self._look_for_failure)
        return self._failure

    def fail(self, error: BaseException, lethal: bool = False) -> Failure:
        """Announce an exception of the main thread, unless another rank was first; return the first failure.

        An error that only says that another process is gone or late waits a few seconds for the reason.

        Args:
            error: What was raised.
            lethal: This process ends because of it; otherwise the user's program may catch it on all ranks and
                begin another run.
        """
        if not self._running and not self._lethal and not self._is_about(error):
            self._failure = None  # of an earlier run, which the program has caught
        if isinstance(error, OtherRankError):
            self._learn(error.failure)
        self._handling = True
        echo = failures.is_echo(error)
        if self._failure is None and echo:
            self._inquiry.error_place = place_of_error(self.rank, error)
            if failures.is_timeout(error) and self._running:
                self._inquiry.certain = True
                self._wake.set()
                self._known.wait(self.timing.answer + 1)
            else:
                self._wait_for_reason()
        if self._failure is None or (lethal and not self._lethal and self._failure.rank == self.rank):
            own = Failure.of_echo(self.rank, error) if echo else Failure.of_error(self.rank, error)
            self._announce(self._failure or own, lethal or not self._running)
        found = self._failure
        assert found is not None
        if found.rank == self.rank:
            self._own_error = error
            failures.write_error_file(found, self.rank)
        self._handled_at = time.monotonic()
        return found

    def _is_about(self, error: BaseException) -> bool:
        """Whether an error comes from the failure that is known."""
        return failures.is_echo(error) or self._own_error in failures.chain(error)

    def report_death(self, rank: int, returncode: int, tail: str = "") -> None:
        """Announce that a process ended without a word; for its launcher.

        Args:
            rank: Which one.
            returncode: As `subprocess` has it: negative for a signal. With 0 it is a failure only if the rank was in a
                run, or is not there for the next one.
            tail: The last lines that it wrote to stderr.
        """
        stopping = any(self._agreements[kind].asked_at is not None for kind in KINDS[1:] if self._agreements)
        if stopping and returncode in CODES_OF_SIGNALS:
            return
        failure = Failure.of_death(rank, returncode, tail)
        if returncode == 0:
            self._ended_well[rank] = failure
            self._do(self._miss)
        else:
            self._announce(failure, lethal=True)

    def _miss(self) -> None:
        """Announce the first rank that has ended with exit code 0 before this run has ended on it."""
        for rank, failure in list(self._ended_well.items()):
            if self._running and self._board.read(f"{self._round}/left/{rank}") is None:
                self._announce(replace(failure, time=time.time()), lethal=True)
                return

    def install(self) -> None:
        """Take over `sys.excepthook`: an exception that nobody catches ends all ranks, with the right last lines."""
        before = sys.excepthook

        def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if self._closed or not isinstance(error, Exception):
                before(kind, error, trace)
                return
            self.end(self.fail(error, lethal=True))

        sys.excepthook = uncaught

    def end(self, failure: Failure) -> NoReturn:
        """Write the last lines of this process and end it with exit code 1."""
        self._ending.acquire()  # never released: the other thread that comes here sleeps until the end
        first = failure.rank == self.rank
        failures.write_error_file(failure, self.rank)
        if first:
            self._best_effort(lambda: self._board.write(f"gone/{self.rank}", ""))
        elif "TORCHELASTIC_ERROR_FILE" in os.environ and failure.kind in ("exception", "hang"):
            self._wait_until_gone(failure)
        self._let_see()
        whole = self.rank == 0 or not self._told or (first and not self._known_in_run)
        text = failure.text if whole else f"Rank {self.rank} ends: {failure.summary.rstrip('.…')}."
        code = 130 if failure.kind == "interrupt" else failures.exit_code(self._own_error) or 1
        failures.end_process("" if code == 130 else text, self.before_end, code, self.timing)

    def _wait_until_gone(self, failure: Failure) -> None:
        """Torchrun takes the process that ends first for the root cause."""
        gone = threading.Event()

        def look() -> None:
            if self._board.read(f"gone/{failure.rank}") is not None:
                gone.set()

        deadline = self._known_at + 2 * self.timing.grace + 1
        while not gone.is_set() and time.monotonic() < deadline and self._best_effort(look):
            time.sleep(self.timing.look)
        time.sleep(self.timing.summary)

    def _wait_for_reason(self) -> None:
        begun = time.monotonic()
        while not self._known.wait(self.timing.look) and not self._store_gone:
            if time.monotonic() - begun >= self.timing.reason:
                break
            self._do(self._look_for_failure)

    def _announce(self, failure: Failure, lethal: bool) -> None:
        def write() -> None:
            first = replace(failure, round=self._round).to_json()
            if self._running:
                first = self._board.write_first(f"{self._round}/failure", first)
            if lethal:
                first = self._board.write_first("failure", first)
            self._learn(Failure.from_json(first), lethal, told=True)

        if not self._best_effort(write):
            self._learn(failure, lethal)

    def _learn(self, failure: Failure, lethal: bool = False, told: bool = False) -> None:
        if self._failure is None:
            self._failure, self._known_at, self._known_in_run = failure, time.monotonic(), self._running
        self._told = self._told or told
        self._lethal = self._lethal or lethal
        self._known.set()

    def _look_for_failure(self) -> None:
        now = self._round
        found, lethal = self._board.read("failure"), True
        if found is None and now:
            found, lethal = self._board.read(f"{now}/failure"), False
        with self._turning:  # the program may have caught that of `now`, and begun another run
            if found is not None and (lethal or now == self._round):
                self._learn(Failure.from_json(found), lethal, told=True)

    # the thread
    def _do(self, task: Callable[[], None]) -> bool:
        """Have the thread do something with the store; return whether it did. The store may not answer for ever."""
        if self._store_gone or self._closed or not self._thread.is_alive():
            return False
        done, did = threading.Event(), []

        def noted() -> None:
            task()
            did.append(True)

        self._tasks.append((noted, done))
        self._wake.set()
        return done.wait(self.timing.store) and bool(did)

    def _best_effort(self, task: Callable[[], None]) -> bool:
        if threading.current_thread() is not self._thread:
            return self._do(task)
        try:
            task()
        except StoreGoneError:
            return False
        return True

    def _watch(self) -> None:
        while not self._closed:
            self._wake.wait(self._pause())
            self._wake.clear()
            try:
                self._end_when_due()
                if not self._store_gone:
                    self._tick()
            except StoreGoneError as error:
                self._store_gone = True
                if self._running and self._host_left != self._round:
                    self._learn(Failure.lost(None, f"the process that keeps the store of the ranks is gone ({error})"))
            except Exception:  # noqa: BLE001, S110  what the run is asked for may not be there yet: the next look finds it
                pass
            if self._store_gone:
                self._give_up_tasks()

    def _pause(self) -> float:
        busy = self._inquiry.pending or self._ends.pending or any(one.pending for one in self._agreements.values())
        return self.timing.busy_poll if self._running and busy else self.timing.poll

    def _give_up_tasks(self) -> None:
        while self._tasks:
            self._tasks.popleft()[1].set()

    def _tick(self) -> None:
        while self._tasks:
            task, done = self._tasks.popleft()
            try:
                task()
            finally:
                done.set()
        if self._failure is not None and self.rank != 0:
            return  # rank 0 has ended, maybe, and the store with it
        news = self._board.news()
        if news != self._news:
            self._look_for_failure()
            if (now := self._round) and self._board.read(f"{now}/left/0") is not None:
                self._host_left = now
        if self._running and (news != self._news or any(one.pending for one in self._agreements.values())):
            self._step_agreements()
        if self._running and (news != self._news or self._ends.pending):
            self._ends.step()
        verdict = self._inquiry.step(news != self._news) if self._failure is None else None
        self._news = news
        if verdict is not None:
            ranks, text = verdict
            summary = f"{_name(ranks)} did not come to where the others wait"
            self._announce(Failure.hang(ranks[0], summary, text), lethal=True)

    def _step_agreements(self) -> None:
        for agreement in list(self._agreements.values()):
            agreement.step(self._board, self._on_request, self._position, f"{self._round}/left")
            asked = agreement.asked_at
            if agreement.pending and asked is not None and time.monotonic() - asked > self.timing.answer:
                here = [r for r in agreement.missing(self._board) if self._is_here(r)]
                if here:
                    what = f"{_name(here)} did not answer for {self.timing.answer:g} s when a stop was asked for"
                    self._announce(Failure.lost(here[0], what), lethal=True)

    def _is_here(self, rank: int) -> bool:
        """Whether a rank has begun this run: another one cannot answer yet."""
        return self._board.read(f"{self._round}/here/{rank}") is not None

    def _end_when_due(self) -> None:
        if self._parent and os.getppid() != self._parent:
            self._learn(Failure.lost(0, "the process that started this one, rank 0's, is gone"), lethal=True)
            self._running = True  # also between two runs: nobody is left to work for
            self._parent = 0
        failure = self._failure
        if failure is None or (self._handling and self._handled_at is None):
            return
        if not self._running and failure.round <= self._round:
            return  # this rank has done its part of that run: its program may go on, and hears of it in the next run
        grace = self.timing.grace
        if failure.kind in ("hang", "interrupt"):
            grace = min(self.timing.short_grace, grace)
        if time.monotonic() - (self._handled_at or self._known_at) > grace:
            self.end(failure)


def _launcher() -> int:
    """Return the process id of the launcher when it is the parent of this process, or was until it ended; else 0."""
    text = os.environ.get("LIGHTLIB_PARENT", "")
    if not text.isdigit():
        return 0
    parent = int(text)
    if os.getppid() == parent:
        return parent
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return parent
    except OSError:
        return 0
    return 0  # it lives and is not our parent: this is a program that a rank has started


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}"
