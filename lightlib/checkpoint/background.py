"""BackgroundWriter: one thread that writes checkpoints while training goes on, one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from lightlib.checkpoint.staging import Buffers, staged
from lightlib.errors import CheckpointWriteError

__all__ = ["BackgroundWriter"]

Call = Callable[[], object]


class BackgroundWriter:
    """Does jobs in their order, in a thread of its own, which ends when there is nothing to do.

    Two saves never overlap: a new one waits for what is still being done, so that at any time one copy of the state
    exists beside the state itself. When a job fails, those behind it are dropped, and the error waits to be taken.
    What is to be called after a job is called by the thread that looks, and not by that of the job.

    Attributes:
        failed: What a job has raised, until somebody takes it; None when nothing went wrong.

    Example:
        >>> writer, done = BackgroundWriter(), []
        >>> writer.submit(lambda: done.append("written"), then=lambda: done.append("said"))
        >>> writer.wait()
        >>> done
        ['written', 'said']
    """

    def __init__(self) -> None:
        self.failed: BaseException | None = None
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Call, Call | None]] = deque()
        self._then: list[Call] = []
        self._running = False
        self._buffers = Buffers()

    @property
    def busy(self) -> bool:
        """Whether something is still to be done."""
        return self._running

    def save(self, content: Any, write: Callable[[Any], object], then: Call | None = None) -> None:
        """Copy `content`, and have `write(copy)` called by the thread; the caller is blocked for the copy alone.

        Args:
            content: Tensors, plain values and containers of them. They may change as soon as this returns.
            write: Gets the copy.
            then: Called after success, by whoever calls `wait` or `look`.
        """
        self.join()
        self.submit(partial(write, staged(content, self._buffers)), then)

    def submit(self, job: Call, then: Call | None = None) -> None:
        """Have `job` done after those before it; it is dropped when one of them fails, or has failed."""
        with self._changed:
            if self.failed is not None:
                return
            self._jobs.append((job, then))
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="lightlib-checkpoints", daemon=True).start()

    def after(self, call: Call) -> None:
        """From within a job: have `call` called by whoever waits or looks next."""
        with self._changed:
            self._then.append(call)

    def join(self) -> None:
        """Wait until all is done or something failed. This raises nothing."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def look(self) -> Exception | None:
        """Without waiting, call what is to be called after the jobs that are done; return an error once."""
        if self._then:
            with self._changed:
                calls, self._then = self._then, []
            for call in calls:
                call()
        if self.failed is None:
            return None
        self.join()
        error, self.failed = self.failed, None
        if not isinstance(error, Exception):
            raise error
        return error if isinstance(error, CheckpointWriteError) else _explained(error)

    def wait(self) -> None:
        """Wait until all is done.

        Raises:
            CheckpointWriteError: A job failed; it is raised once.
        """
        self.join()
        error = self.look()
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._running = False
                    self._changed.notify_all()
                    return
                job, then = self._jobs.popleft()
            try:
                job()
            except BaseException as error:  # noqa: BLE001  nobody is here to catch it: it waits to be taken
                with self._changed:
                    self.failed = error
                    self._jobs.clear()
            else:
                if then is not None:
                    self.after(then)
            del job, then  # and the copy of the state


def _explained(error: Exception) -> CheckpointWriteError:
    explained = CheckpointWriteError(
        f"A checkpoint could not be written in the background: {type(error).__name__}: {error}",
        expected="a folder that can be written, and a state of tensors and plain values.",
        fix="see the error above; ModelCheckpoint(async_save=False) raises it where the save begins.",
    )
    explained.__cause__ = error
    return explained
