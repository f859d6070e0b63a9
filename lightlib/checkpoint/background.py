"""BackgroundWriter: a thread that writes checkpoints one after the other while training continues."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from lightlib.checkpoint.staging import Buffers, staged
from lightlib.errors import CheckpointWriteError

Call = Callable[[], object]


class BackgroundWriter:
    """Runs jobs in order, in a separate thread, which ends when there are none.

    Two saves never overlap: a new one waits for the pending one, so at most one copy of the state exists in addition to
    the state itself. When a job fails, the jobs after it are dropped, and the error is kept for `look` or `wait`.
    Follow-up calls run in the thread that calls `look` or `wait`, not in the thread of the job.

    Attributes:
        failed: The exception of a failed job until `look` or `wait` has handled it; else None.

    Example:
        >>> writer, done = BackgroundWriter(), []
        >>> writer.submit(lambda: done.append("written"), then=lambda: done.append("reported"))
        >>> writer.wait()
        >>> done
        ['written', 'reported']
    """

    def __init__(self) -> None:
        self.failed: BaseException | None = None
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Call, Call | None]] = deque()
        self._then: list[Call] = []
        self.busy = False  # whether jobs are pending
        self._buffers = Buffers()

    def save(self, content: Any, write: Callable[[Any], object], then: Call | None = None) -> None:
        """Copy `content` and have the thread call `write(copy)`; only the copy blocks the caller.

        After success, `wait` or `look` calls `then`.
        """
        self.join()
        self.submit(partial(write, staged(content, self._buffers)), then)

    def submit(self, job: Call, then: Call | None = None) -> None:
        """Queue `job`; it is dropped if an earlier one fails or has failed."""
        with self._changed:
            if self.failed is not None:
                return
            self._jobs.append((job, then))
            if not self.busy:
                self.busy = True
                threading.Thread(target=self._work, name="lightlib-checkpoints", daemon=True).start()

    def after(self, call: Call) -> None:
        """Called by a job: have the next `wait` or `look` run `call`."""
        with self._changed:
            self._then.append(call)

    def join(self) -> None:
        """Wait until all jobs are done or one has failed; raise nothing."""
        with self._changed:
            self._changed.wait_for(lambda: not self.busy)

    def look(self) -> Exception | None:
        """Run the follow-up calls of completed jobs without waiting; return the error of a failed job once."""
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
        """Wait until all jobs are done; a `CheckpointWriteError`, raised once, means that one has failed."""
        self.join()
        error = self.look()
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self.busy = False
                    self._changed.notify_all()
                    return
                job, then = self._jobs.popleft()
            try:
                job()
            except BaseException as error:  # noqa: BLE001  `look` or `wait` returns or raises it
                with self._changed:
                    self.failed = error
                    self._jobs.clear()
            else:
                if then is not None:
                    self.after(then)
            del job, then  # frees the copy of the state


def _explained(error: Exception) -> CheckpointWriteError:
    explained = CheckpointWriteError(
        f"A checkpoint could not be written in the background: {type(error).__name__}: {error}",
        expected="a folder that can be written, and a state of tensors and plain values.",
        fix="see the error above; with ModelCheckpoint(async_save=False) it is raised where the save begins.",
    )
    explained.__cause__ = error
    return explained
