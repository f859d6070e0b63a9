"""FirstFailure: the first failure of a run, as far as this rank knows."""

from __future__ import annotations

import threading
import time

from lightlib.launch.watch.failure import Failure


class FirstFailure:
    """The first failure of a run that this rank knows of; the first one that it learns counts."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.lethal = False  # whether it ends this process: the program cannot catch it and begin another run
        self.in_store = False  # whether it is in the store, so that rank 0 reports it
        self.in_run = False  # whether this rank was in a run when it learned of it
        self.known_at = 0.0  # when it learned of it, on the monotonic clock
        self.known = threading.Event()

    def learn(self, failure: Failure, in_run: bool, lethal: bool = False, in_store: bool = False) -> None:
        """Note a failure, unless one is known."""
        if self.failure is None:
            self.failure, self.known_at, self.in_run = failure, time.monotonic(), in_run
        self.in_store = self.in_store or in_store
        self.lethal = self.lethal or lethal
        self.known.set()

    def drop(self) -> None:
        """Drop the failure of an earlier run, which the program has caught."""
        self.failure = None

    def begin_run(self) -> None:
        """Forget the failure of an earlier run; a new run begins."""
        self.failure = None
        self.in_store = False
        self.known.clear()
