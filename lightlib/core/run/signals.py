"""Signals: Ctrl-C and SIGTERM are noted, and obeyed where a run can be left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightlib import report
from lightlib.errors import SIGTERMException

__all__ = ["Signals"]


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
