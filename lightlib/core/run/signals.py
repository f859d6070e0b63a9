"""Signals: notes Ctrl-C and SIGTERM until the run reaches a point where it can be left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightlib import report
from lightlib.errors import SIGTERMException
from lightlib.strategies.strategy import Strategy


class Signals:
    """Notes the first Ctrl-C or SIGTERM, which the loop raises between two steps. A second Ctrl-C is raised at once.

    A handler set by other code is called as well; an ignored signal stays ignored.

    Args:
        requeue: A signal that stops the run like SIGTERM and has its job queued again.

    Attributes:
        received: The exception to raise between two steps, or None.
        requeue_asked: Whether this process received the signal `requeue`.
    """

    def __init__(self, requeue: signal.Signals | None = None) -> None:
        self.received: BaseException | None = None
        self.requeue, self.requeue_asked = requeue, False
        self._notify: Callable[[str], None] | None = None
        self._process = os.getpid()
        self._expects_interrupt = False
        self._before: dict[signal.Signals, Any] = {}

    def notify_by(self, notify: Callable[[str], None]) -> None:
        """Call `notify` to inform the other processes of a signal; it may be called from a handler."""
        self._notify = notify

    def clear(self) -> None:
        self.received = None

    def release_frames(self) -> None:
        """Drop the traceback of the received signal, because its frames hold the last batch."""
        if self.received is not None:
            self.received = self.received.with_traceback(None)

    def receive(self, kind: str) -> None:
        """Note that another process got a signal: ``"interrupt"`` or ``"terminate"``.

        Ctrl-C reaches all processes of a terminal, so this process's may follow. It does not count as the second one.
        """
        if self.received is None:
            self._expects_interrupt = kind == "interrupt"
            self.received = KeyboardInterrupt() if kind == "interrupt" else SIGTERMException()

    def of_any(self, strategy: Strategy) -> BaseException | None:
        """Return the signal that any process received after the last point at which the run could be left."""
        strategy.barrier("the end of a run")  # a signal that arrives during this wait counts
        asked = self.received
        if not strategy.reduce_boolean_decision(asked is not None, all=False):
            return None
        terminated = strategy.reduce_boolean_decision(isinstance(asked, SIGTERMException), all=False)
        return SIGTERMException() if terminated else KeyboardInterrupt()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Handle the signals inside, in the main thread, and restore the former handlers afterwards."""
        self.received, self.requeue_asked, self._process = None, False, os.getpid()
        self._expects_interrupt = False
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
                if before is not None:  # None: not set from Python, and left in place above
                    signal.signal(number, before)

    def _pass_on(self, kind: str, number: int, frame: Any) -> None:
        """Inform the other processes, and call the former handler unless it is Python's default."""
        if self._notify is not None:
            self._notify(kind)
        before = self._before.get(signal.Signals(number))
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def _on_interrupt(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker, which continues until the run has left
            return
        if self.received is not None and not self._expects_interrupt:
            raise KeyboardInterrupt
        self.received, self._expects_interrupt = self.received or KeyboardInterrupt(), False
        report.info("\nStopping after this step; press Ctrl-C again to stop at once.")
        self._pass_on("interrupt", number, frame)

    def _on_terminate(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker, which has to end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.received = self.received or SIGTERMException()
        self._pass_on("terminate", number, frame)

    def _on_requeue(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker: SLURM signals all processes of a step
            return
        self.requeue_asked = True
        if self.received is None:
            report.info(f"{signal.Signals(number).name}: the run stops after this step, and its job is queued again.")
        self.received = self.received or SIGTERMException()
        self._pass_on("terminate", number, frame)
