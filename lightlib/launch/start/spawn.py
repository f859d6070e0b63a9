"""Runs a function in new processes (spawn, fork or forkserver) and returns the result of rank 0."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

from lightlib import report
from lightlib.errors import UnknownNameError
from lightlib.launch.environment.environment import Environment, HeldPort, threads_per_process
from lightlib.launch.start.deferred_interrupt import INTERRUPT
from lightlib.launch.start.folder import absolute_import_paths
from lightlib.launch.start.process_errors import ProcessExitedError, ProcessRaisedError
from lightlib.launch.start.spawned_process import ProcessFailure, read_end, read_failure, read_result, run_function
from lightlib.launch.start.start_methods import check_fork, check_guard, pickled

T = TypeVar("T")
METHODS = ("spawn", "fork", "forkserver")
_STOPPED = (130, 143)  # by Ctrl-C, by SIGTERM


@dataclass(frozen=True)
class Patience:
    """How long `launch_function` waits for its processes, in seconds; the defaults are for production."""

    poll: float = 0.3  # interval at which failures are polled, and time for the cause of a failure to appear
    grace: float = 5.0  # for the other processes to end after a failure, and again after SIGTERM
    save: float = 30.0  # for all processes to end after Ctrl-C and SIGTERM, because they may write a checkpoint


_PRODUCTION = Patience()


def launch_function(
    function: Callable[[int], T],
    n: int,
    method: str = "spawn",
    environment: Environment | None = None,
    patience: Patience = _PRODUCTION,
) -> T:
    """Run `function(rank)` in `n` new processes and return the result of rank 0.

    The processes get their rank in the variables RANK, WORLD_SIZE, LOCAL_RANK and so on. They work on copies: the
    function's changes to objects of this process are visible only in the result of rank 0.

    Args:
        function: With ``"fork"`` anything; otherwise it must be picklable.
        n: Number of processes.
        method: ``"spawn"``, ``"forkserver"`` (new interpreters) or ``"fork"`` (copies of this process: needs no
            pickling and works in notebooks, but not after CUDA was used here).
        environment: The environment of this process, from which the children's follow. Default: this machine alone.
        patience: How long to wait for processes that do not end.

    Raises:
        MisconfigurationException: The method cannot be used here, or the function cannot be sent to a new process.
        ProcessFailedError: A process failed; it names the first one. The rest have been ended. It is also torch's
            `ProcessRaisedException`, or `ProcessExitedException` if the process was killed.
        KeyboardInterrupt, SystemExit: The exception that ended a process after a signal.

    Example:
        >>> launch_function(lambda rank: {"rank": rank}, 2, "fork")
        {'rank': 0}
    """
    if method not in METHODS:
        raise UnknownNameError("start method", method, METHODS)
    environment = environment or Environment(world_size=n, local_size=n)
    held_port = HeldPort(environment.port)
    first = environment.at(0, held_port.port)
    sent: Any = function
    if method == "fork":
        check_fork()
    else:
        check_guard(method)
        sent = pickled(function, method)
    folder = Path(tempfile.mkdtemp(prefix="lightlib-"))
    INTERRUPT.hold()
    try:
        processes = _start(method, sent, n, first, folder)
        try:
            INTERRUPT.release()
            with _forwarding_sigterm(processes) as received:
                failure = _wait(processes, folder, patience)
        except KeyboardInterrupt:
            _interrupt(processes, patience)
            for failure in map(read_failure, folder.glob("failed-*")):
                if isinstance(failure.error, SystemExit) and failure.error.code in _STOPPED:
                    raise failure.error from None  # they have left their run and printed how to resume
            raise
        except BaseException:
            _end(processes, 0.0)
            raise
        if received and (failure is None or failure.code == -signal.SIGTERM):  # received outside of a run
            raise SystemExit(143)
        if failure is not None:
            _raise(failure, processes)
        result: T = read_result(folder)
        return result
    finally:
        INTERRUPT.release()
        held_port.close()
        shutil.rmtree(folder, ignore_errors=True)


def _start(method: str, sent: Any, n: int, first: Environment, folder: Path) -> list[Any]:
    share = threads_per_process(n)
    if method == "fork" and share is not None and share > 1:
        report.info(f"Each of the {n} processes computes on one thread, because forked processes must.")
    context: Any = multiprocessing.get_context(method)
    threads = 1 if method == "fork" else share
    processes: list[Any] = []
    try:
        for local_rank in range(n):
            arguments = (sent, first.at(local_rank), str(folder), threads, method)
            process = context.Process(target=run_function, args=arguments, name=f"rank {first.rank + local_rank}")
            with warnings.catch_warnings(), absolute_import_paths():
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                process.start()
            processes.append(process)
    except BaseException:
        _end(processes, 0.0)
        raise
    return processes


@contextmanager
def _forwarding_sigterm(processes: list[Any]) -> Iterator[list[int]]:
    """Forward SIGTERM to the processes, so that they end their run; yield the signals received so far."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        for process in processes:
            process.terminate()

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # keep the user's handler
        yield received
        return
    signal.signal(signal.SIGTERM, forward)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _wait(processes: list[Any], folder: Path, patience: Patience) -> ProcessFailure | None:
    """Wait until all have ended; after the first failure give the rest a moment, then end them."""
    running = list(processes)
    while running:
        connection.wait([process.sentinel for process in running], timeout=patience.poll)
        running = [process for process in running if process.exitcode is None]
        failed = any(process.exitcode or _is_missed(process, folder) for process in processes)
        if failed or any(folder.glob("failed-*")):
            time.sleep(patience.poll)  # for a killed process, the cause of the errors reported meanwhile, to be noticed
            killed = [process for process in processes if (process.exitcode or 0) < 0 or _is_missed(process, folder)]
            _end(processes, patience.grace)
            return _first(processes, killed, folder)
    return None


def _is_missed(process: Any, folder: Path) -> bool:
    """Whether a process has ended with exit code 0 before it was done, as by `os._exit`."""
    return process.exitcode == 0 and not (folder / f"done-{_rank_of(process)}").exists()


def _rank_of(process: Any) -> int:
    return int(process.name.removeprefix("rank "))


def _first(processes: list[Any], killed: list[Any], folder: Path) -> ProcessFailure:
    """Return the first failure: a process that ended without reporting why, else the earliest reported one."""
    written = list(map(read_failure, folder.glob("failed-*"))) + list(map(read_end, folder.glob("ended-*")))
    if written and not killed:
        return min(written, key=lambda failure: (failure.echo, failure.time))
    process = next(iter(killed or (process for process in processes if process.exitcode)))
    return ProcessFailure(_rank_of(process), 0.0, "", None, process.exitcode)


def _raise(failure: ProcessFailure, processes: list[Any]) -> None:
    if isinstance(failure.error, (KeyboardInterrupt, SystemExit)):
        if isinstance(failure.error, SystemExit) and failure.error.code not in (*_STOPPED, 0, None):
            sys.stderr.write(f"Rank {failure.rank} has ended the program.\n\n{failure.trace}")
        raise failure.error
    ranks = [_rank_of(process) for process in processes]
    here = failure.rank in ranks
    index, pid = failure.rank - ranks[0], processes[ranks.index(failure.rank)].pid if here else 0
    if failure.code is not None:
        raise ProcessExitedError(failure.rank, failure.code, index, pid)
    raise ProcessRaisedError(failure.rank, "failed", failure.trace, index, pid) from failure.error


def _interrupt(processes: list[Any], patience: Patience) -> None:
    """Let the processes end by themselves: Ctrl-C has reached them as well. A second one ends them at once."""
    try:
        _end(processes, patience.save, first=patience.grace)
    except KeyboardInterrupt:
        _end(processes, 0.0)


def _end(processes: list[Any], grace: float, first: float | None = None) -> None:
    """Wait `first` (default `grace`) seconds for these processes, then send SIGTERM, then SIGKILL."""
    _join(processes, grace if first is None else first)
    for process in processes:
        process.terminate()
    _join(processes, grace)
    for process in processes:
        process.kill()
    _join(processes, None)


def _join(processes: list[Any], seconds: float | None) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    for process in processes:
        process.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
