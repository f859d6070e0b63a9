"""DeferredInterrupt: holds Ctrl-C back while processes are started."""

from __future__ import annotations

import signal
import threading
from typing import Any


class DeferredInterrupt:
    """Holds Ctrl-C back until all processes are started: Python would ignore one raised in a callback of a fork."""

    _before: Any = None
    _pressed = False

    def hold(self) -> None:
        """From now on only note Ctrl-C. Outside of the main thread nothing changes: Ctrl-C never reaches it."""
        if threading.current_thread() is threading.main_thread():
            self._before, self._pressed = signal.getsignal(signal.SIGINT), False
            if self._before is not None:
                signal.signal(signal.SIGINT, self._note)

    def release(self) -> None:
        """Restore the handler of Ctrl-C, and raise one that was noted; also works in a forked process."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
            if self._pressed:
                signal.raise_signal(signal.SIGINT)

    def _note(self, *_: object) -> None:
        self._pressed = True


INTERRUPT = DeferredInterrupt()
