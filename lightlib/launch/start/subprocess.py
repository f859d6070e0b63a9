"""SubprocessLauncher: runs the program again for each of the other ranks of this machine."""

from __future__ import annotations

import atexit
import contextlib
import io
import itertools
import logging
import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType

from lightlib import report
from lightlib.errors import LightlibError, MisconfigurationException, owner
from lightlib.launch.environment.detect import LAUNCHED, PARENT
from lightlib.launch.environment.environment import Environment, HeldPort, threads_per_process
from lightlib.launch.start.child import Child, how_it_ended
from lightlib.launch.start.folder import folder_of_program
from lightlib.launch.start.program import check_one_machine, command_of_program

OnDeath = Callable[[int, int, str], None]

_POLL = 0.1
_SETTLED = 2.0
_AT_ONCE = 0.5
_record: SubprocessLauncher | None = None


class SubprocessLauncher:
    """Starts the other processes of this machine by running the program again, and supervises them.

    This process is the first one. The child processes get their rank in the variables RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT. Their output appears here with a tag. They are started
    once: later runs of the same program reuse them. They end when this process does, however it ends.

    Args:
        environment: The environment of this process, from `detect`.
        forked: How to write the requested strategy with forked processes; for an error.
        timeout: Seconds that the children may continue after this process has reached its end. Default 30.
        grace: Seconds that they have to end after a failure. Default 5.
        drain: Seconds to read the rest of an ended child's output. Default 1.

    Attributes:
        meets: Whether this process waits in the rendezvous: then a child that has ended is missing, failed or not.

    Example:
        >>> launcher = SubprocessLauncher(Environment())
        >>> launcher.launch().world_size, launcher.running()  # one process: there is nothing to start
        (1, [])
    """

    def __init__(
        self,
        environment: Environment,
        forked: str = '"ddp_notebook"',
        *,
        timeout: float = 30.0,
        grace: float = 5.0,
        drain: float = 1.0,
    ) -> None:
        self.environment = environment
        self.forked = forked
        self.timeout = timeout
        self.grace = grace
        self.drain = drain
        self._children: list[Child] = []
        self._callbacks: list[OnDeath] = []
        self._stopped: set[int] = set()
        self.meets = False
        self.process = os.getpid()
        self._ending = False
        self._all_ended = threading.Event()
        self._all_ended.set()  # there are none yet
        self._lock = threading.Lock()

    def launch(self) -> Environment:
        """Start the children and return the environment of this process. They may need seconds to come up.

        Raises:
            MisconfigurationException: The program cannot be run again from here, there are several machines, or
                a different number of processes was started before.
            LightlibError: The system refused to start a process.
        """
        if self.environment.launched:
            return self.environment
        before = launched_processes()
        if before is not None:
            return self._same_as(before)
        check_one_machine(self.environment)
        self._held = HeldPort(self.environment.port)  # as long as the program runs
        first = self.environment.at(0, self._held.port)
        self.environment = first
        if first.world_size == 1:
            return first
        if first.local_size > 1:
            command = command_of_program(first.local_size, self.forked)
            self._share_threads()
            self._start(command, first)
        os.environ.update(first.export() | {LAUNCHED: str(os.getpid())})
        return first

    def on_death(self, callback: OnDeath) -> None:
        """Call `callback(rank, exit code, last lines of stderr)` for each process that ends before this one, once.

        It is called in another thread, soon for processes that have ended already. The callback must find out whether
        a process that ended with exit code 0 is missing. A process that was interrupted (Ctrl-C, or an end that all
        ranks agreed on) is reported only if this one continues without it.
        """
        with self._lock:
            self._callbacks.append(callback)
            missed = [child for child in self._children if child.reported and self._concerns(child)]
        _report([callback], missed)

    def failures(self) -> list[tuple[int, int, str]]:
        """Return rank, exit code and the last lines of stderr of each failed process, in the order of their ends."""
        failed = [child for child in self._children if child.ended and self._has_failed(child)]
        failed.sort(key=lambda child: child.ended)
        return [(child.rank, child.process.returncode, child.tail) for child in failed]

    def running(self) -> list[int]:
        """Return the ranks of the processes that have not ended."""
        return [child.rank for child in self._children if child.running]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all children have ended and their output is passed on; return whether they have."""
        return self._all_ended.wait(timeout)

    def stop(self, grace: float | None = None) -> None:
        """End the children: send SIGTERM, and after `grace` seconds (default: as given to the class) kill them."""
        children = [child for child in self._children if child.running]
        self._stopped.update(child.rank for child in children)
        for child in children:
            child.process.terminate()
        if not self.wait(self.grace if grace is None else grace):
            for child in children:
                child.process.kill()
            self.wait(self.grace)

    # starting
    def _same_as(self, before: SubprocessLauncher) -> Environment:
        requested, existing = self.environment, before.environment
        if (requested.world_size, requested.local_size) != (existing.world_size, existing.local_size):
            raise MisconfigurationException(
                f"This {owner()} requests {requested.world_size} processes, but this program has started "
                f"{existing.world_size} for an earlier one.",
                expected="the same number for every Trainer of a program: they are started once and reused.",
                fix=f"{owner()}(devices={existing.local_size}), or a separate program for this {owner()}.",
            )
        vars(self).update(vars(before))  # from now on the same processes and the same callbacks
        return existing

    def _share_threads(self) -> None:
        size = self.environment.local_size
        threads = threads_per_process(size)
        if threads is None:
            return
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch = sys.modules.get("torch")
        if torch is not None and torch.get_num_threads() > threads:
            torch.set_num_threads(threads)
        report.info(f"Each of the {size} processes uses {threads} of this machine's cores: OMP_NUM_THREADS={threads}.")

    def _start(self, command: list[str], first: Environment) -> None:
        global _record  # noqa: PLW0603  the processes belong to the program, and are started once
        if isinstance(sys.stdout, io.TextIOWrapper):
            # complete lines among those of the children
            sys.stdout.reconfigure(line_buffering=True, write_through=False)
        self._all_ended.clear()
        started: Future[None] = Future()
        # Linux kills the children when the thread that started them ends, so this thread lives as long as they do.
        supervise = partial(self._supervise, command, first, started)
        threading.Thread(target=supervise, name="lightlib children", daemon=True).start()
        error = started.exception()
        if error is not None:
            raise LightlibError(
                f"A process could not be started: {error}.",
                expected=f"to run `{shlex.join(command[-4:])}` in {folder_of_program()!r}.",
                fix="see the system's error above; fewer devices need fewer processes.",
            ) from error
        _record = self

    def _supervise(self, command: list[str], first: Environment, started: Future[None]) -> None:
        folder = folder_of_program()
        try:
            for local_rank in range(1, first.local_size):
                self._children.append(Child.start(command, first.at(local_rank), folder))
        except BaseException as error:  # noqa: BLE001  `_start` raises it
            for child in self._children:
                child.process.kill()
            started.set_exception(error)
            return
        started.set_result(None)
        while self.running() or any(not child.reported for child in self._children):
            time.sleep(_POLL)
            for child in self._children:
                child.settle(_SETTLED)
            self._note_ended()
            if self._ending and not self.running():
                break
        self._note_ended()

    def _note_ended(self) -> None:
        for child in self._children:
            child.check(self.drain)
            if child.ended and not child.reported:
                self._report_end(child)
        if all(child.ended for child in self._children):
            self._all_ended.set()

    def _report_end(self, child: Child) -> None:
        if child.interrupted and not self._ending and time.monotonic() - child.ended < self.grace:
            return
        with self._lock:
            child.set_reported()
            callbacks = list(self._callbacks)
        if not self._ending and self._concerns(child):
            _report(callbacks, [child])

    def _concerns(self, child: Child) -> bool:
        ended_well = child.process.returncode == 0 and child.rank not in self._stopped
        return child.interrupted or self._has_failed(child) or ended_well

    def _has_failed(self, child: Child) -> bool:
        return child.process.returncode != 0 and not child.interrupted and child.rank not in self._stopped

    # the end
    def end(self) -> int:
        """At the end of this process, wait for the children, stop those that do not end, and return the exit code."""
        raised = _has_raised()
        self._ending = True
        cause = self._cause() if raised and not self._callbacks else []
        for child in self._children if raised else []:
            child.silence()
        try:
            self._wait_for_the_end((_AT_ONCE if self.meets else self.grace) if raised else self.timeout)
        except KeyboardInterrupt:
            self.stop(0.0)
        late, failures = self.running(), self.failures()
        self.stop()
        if late and not raised:
            _print(f"{_ranks(late)} still running {self.timeout:g} s after rank 0 had ended, and stopped.")
        for rank, code, tail in (cause if raised else failures)[:1]:
            _print("\n".join(["", *tail.splitlines()[-20:], f"Rank {rank} {how_it_ended(code)}."]))
        return 1 if raised or late or failures else 0

    def _cause(self) -> list[tuple[int, int, str]]:
        """Return the failures of children just before this process failed, unless the error is the same."""
        self.wait(_AT_ONCE)
        last = getattr(sys, "last_exc", None) or sys.last_value
        local = traceback.format_exception_only(type(last), last)[-1].strip()
        return [failure for failure in self.failures() if not failure[2].endswith(local)]

    def _wait_for_the_end(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while not self.wait(_POLL) and time.monotonic() < deadline:
            if self.failures():
                deadline = min(deadline, time.monotonic() + self.grace)
                self.wait(deadline - time.monotonic())


def launched_processes() -> SubprocessLauncher | None:
    """Return the launcher that has started the child processes of this program, or None."""
    return _record if _record is not None and _record.process == os.getpid() else None


def _report(callbacks: list[OnDeath], children: list[Child]) -> None:
    """Call the callbacks in a thread: one may wait for the thread that noticed the end."""

    def call() -> None:
        for child, callback in itertools.product(children, callbacks):
            try:
                callback(child.rank, child.process.returncode, child.tail)
            except Exception:  # noqa: BLE001  the remaining callbacks are called anyway
                traceback.print_exc()

    if children:
        threading.Thread(target=call, name="lightlib on_death", daemon=True).start()


def _has_raised() -> bool:
    """Return whether Python ends because of an uncaught exception: then it exits with 1 by itself."""
    return hasattr(sys, "last_value") or hasattr(sys, "last_exc")


def _ranks(ranks: list[int]) -> str:
    return f"Rank {ranks[0]} was" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))} were"


def _print(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _end_of_program() -> None:
    """Exit with code 1 if a child has failed although this process has not."""
    launcher = launched_processes()
    if launcher is not None and launcher.end() and not _has_raised():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(1)


def _hide_interrupts() -> None:
    """Print no traceback for Ctrl-C, which reaches all processes of a terminal: rank 0 prints it."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            before(kind, error, trace)

    sys.excepthook = hook


if os.environ.get(PARENT) == str(os.getppid()):
    _hide_interrupts()
atexit.register(_end_of_program)  # as early as possible: functions that are registered later run before
