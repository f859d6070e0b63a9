"""Signals: Ctrl-C and SIGTERM are noted, and obeyed where a run can be left."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

from lightlib import report
from lightlib.errors import SIGTERMException

__all__ = ["Signals", "Undisturbed", "started_undisturbed"]

_TO_ALL = {number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")}


class Undisturbed:
    """A DataLoader's `worker_init_fn`: a signal to all processes of a run leaves its workers to it until it has left.

    Ctrl-C, and the SIGTERM of a cluster that ends a job, reach the workers too, whose batches the run needs to its next
    step. A SIGTERM of the run itself, with which torch ends a worker that hangs, ends it.
    """

    def __init__(self, given: Callable[[int], None] | None) -> None:
        self.given = given

    def __call__(self, worker: int) -> None:
        """Begin what is to last; until here the worker has what `started_undisturbed` blocks."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "sigwaitinfo"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_end_when_asked_by, args=(multiprocessing.parent_process(),), daemon=True).start()
        if "SLURM_JOB_ID" in os.environ:  # which sends the signal before a time limit to all processes of a step
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                if signal.getsignal(number) is signal.SIG_DFL:  # which would end the worker
                    signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_ALL - {signal.SIGTERM})
        if self.given is not None:
            self.given(worker)


@functools.cache
def started_undisturbed(kind: Any) -> Any:
    """Return the class of loaders `kind` whose workers hear no signal to all before their `Undisturbed` has begun.

    They inherit what this thread blocks while it starts them; but not from a fork server, which blocks nothing.
    """

    def _get_iterator(self: Any) -> Any:
        if not hasattr(signal, "pthread_sigmask"):
            return kind._get_iterator(self)  # noqa: SLF001  of torch's DataLoader
        _start_servers(self.multiprocessing_context or multiprocessing.get_context())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _TO_ALL)
        try:
            return kind._get_iterator(self)  # noqa: SLF001
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(kind.__name__, (kind,), {**names, "_get_iterator": _get_iterator})


def _start_servers(context: Any) -> None:
    """Start what outlives the workers: it must not inherit what is blocked for them, nor unblock it when it starts."""
    method = context.get_start_method()
    if method == "forkserver":
        forkserver.ensure_running()
    if method != "fork":
        resource_tracker.ensure_running()


def _end_when_asked_by(parent: Any) -> None:
    """End this process at a SIGTERM of `parent`, or of anybody when that is gone; others are not heard."""
    while True:
        sender = signal.sigwaitinfo({signal.SIGTERM}).si_pid
        if sender == parent.pid or not parent.is_alive():  # a fork server is parent to the system only
            os._exit(0)


class Signals:
    """Notes the first Ctrl-C or SIGTERM; the loop raises it between two steps. A second Ctrl-C is obeyed at once.

    A handler that somebody else had set is called as well; a signal that is ignored stays ignored.

    Args:
        requeue: A further signal: the run stops as for SIGTERM, and its job is to be queued again.

    Attributes:
        received: The exception to raise at the next good moment, or None.
        requeue_asked: Whether this process got the signal `requeue`.
    """

    def __init__(self, requeue: signal.Signals | None = None) -> None:
        self.received: BaseException | None = None
        self.requeue, self.requeue_asked = requeue, False
        self.tell: Callable[[str], None] | None = None  # lets other processes know; it may be called from a handler
        self._process = os.getpid()
        self._own_to_come = False
        self._before: dict[signal.Signals, Any] = {}

    def hear(self, kind: str) -> None:
        """Take note that another process got a signal: ``"interrupt"`` or ``"terminate"``.

        A Ctrl-C reaches all processes of a terminal, so one's own may come after this, and is not the second.
        """
        if self.received is None:
            self._own_to_come = kind == "interrupt"
            self.received = KeyboardInterrupt() if kind == "interrupt" else SIGTERMException()

    def of_any(self, strategy: Any) -> BaseException | None:
        """Return the signal that came to any process after the last boundary at which the run could be left."""
        strategy.barrier("the end of a run")  # a signal that comes while others are waited for counts
        asked = self.received
        if not strategy.reduce_boolean_decision(asked is not None, all=False):
            return None
        terminated = strategy.reduce_boolean_decision(isinstance(asked, SIGTERMException), all=False)
        return SIGTERMException() if terminated else KeyboardInterrupt()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Catch both signals inside, in the main thread; the handlers of before come back afterwards."""
        self.received, self.requeue_asked, self._process = None, False, os.getpid()
        self._own_to_come = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {signal.SIGINT: self._on_interrupt, signal.SIGTERM: self._on_terminate}
        if self.requeue is not None:
            handlers[self.requeue] = self._on_requeue
        self._before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            if self._before[number] not in (signal.SIG_IGN, None):
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, before in self._before.items():
                if before is not None:  # it was not set from Python, and we left it
                    signal.signal(number, before)

    def _chain(self, number: int, frame: Any) -> None:
        """Call the handler that was there before, when it is somebody's own."""
        before = self._before.get(signal.Signals(number))
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def _on_interrupt(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker: it goes on until the run has left
            return
        if self.received is not None and not self._own_to_come:
            raise KeyboardInterrupt
        self.received, self._own_to_come = self.received or KeyboardInterrupt(), False
        report.info("\nStopping after this step; press Ctrl-C again to stop at once.")
        if self.tell is not None:
            self.tell("interrupt")
        self._chain(number, frame)

    def _on_terminate(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker that is to end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.received = self.received or SIGTERMException()
        if self.tell is not None:
            self.tell("terminate")
        self._chain(number, frame)

    def _on_requeue(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker: SLURM signals all processes of a step
            return
        self.requeue_asked = True
        if self.received is None:
            report.info(f"{signal.Signals(number).name}: the run stops after this step, and its job is queued again.")
        self.received = self.received or SIGTERMException()
        if self.tell is not None:
            self.tell("terminate")
        self._chain(number, frame)
