"""BackgroundCalls: makes calls one after the other in a thread that ends when there are none."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from lightlib.errors import LoggingError
from lightlib.report import warn

PATIENCE = 1.0  # seconds that a method of a logger waits for the service
_PATIENCE_AT_EXIT = 10.0


class BackgroundCalls:
    """Calls functions in the background, in their order; an exception is raised by the next `add` or `check`.

    When the program ends, calls that have not been made get ten seconds more. A copy has no calls.

    Args:
        owner: The name for messages.
        most: How many calls may wait. Further ones are refused.

    Example:
        >>> made, calls = [], BackgroundCalls("example")
        >>> calls.add(lambda: made.append(1))
        >>> calls.wait(None), made
        (True, [1])
    """

    def __init__(self, owner: str, most: int = 10_000) -> None:
        self._owner, self._most = owner, most
        self._waiting: deque[Callable[[], object]] = deque()
        self._errors: deque[Exception] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._watches_exit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return BackgroundCalls, (self._owner, self._most)

    def add(self, call: Callable[[], object]) -> None:
        """Let `call` be made after those before it.

        Raises:
            LoggingError: Too many calls wait.
            Exception: An earlier call has raised it.
        """
        with self._changed:
            if len(self._waiting) >= self._most:
                raise LoggingError(
                    f"{self._owner} has {len(self._waiting)} calls that its service has not answered.",
                    expected="a service that is as fast as the run.",
                    fix="log less often, Trainer(log_every_n_steps=…); these values are dropped.",
                )
            self._waiting.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"lightlib-{self._owner}", daemon=True)
                self._thread.start()
            if not self._watches_exit:
                self._watches_exit = True
                atexit.register(_wait_at_exit, weakref.ref(self))
        self.check()

    def check(self) -> None:
        """Raise the exception of an earlier call, once."""
        if self._errors:
            raise self._errors.popleft()

    def wait(self, seconds: float | None) -> bool:
        """Wait until all calls are made, and return whether they are.

        Args:
            seconds: At most. None: without a limit.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def finish(self) -> None:
        """Wait a second at most; warn if calls remain, and raise the exception of an earlier one."""
        if not self.wait(PATIENCE):
            warn(
                f"{self._owner}: the service has not answered {self.num_waiting} calls yet. They are made in the "
                f"background, and get {_PATIENCE_AT_EXIT:g} more seconds when the program ends."
            )
        self.check()

    @property
    def num_waiting(self) -> int:
        """How many calls have not been made."""
        return len(self._waiting)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    self._changed.notify_all()
                    return
                call = self._waiting[0]
            try:
                call()
            except Exception as error:  # noqa: BLE001  a client may raise anything
                self._errors.append(error)
            with self._changed:
                self._waiting.popleft()


def _wait_at_exit(calls: weakref.ref[BackgroundCalls]) -> None:
    waiting = calls()
    if waiting is not None:
        waiting.wait(_PATIENCE_AT_EXIT)
