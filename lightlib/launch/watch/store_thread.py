"""StoreThread: the watch thread, which makes all calls of the store, also for other threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from lightlib.launch.watch.board import StoreGoneError


class StoreThread:
    """A daemon thread that repeats a step. Other threads hand it their calls of the store, which may never answer.

    Args:
        step: Called at each interval, or sooner after `wake`. It calls `run_tasks`.
        lost: Called with the error when the process that hosts the store is gone.
        pause: Returns the seconds until the next step.
        timeout: Seconds for the store to complete a task of another thread.
    """

    def __init__(
        self,
        step: Callable[[], None],
        lost: Callable[[StoreGoneError], None],
        pause: Callable[[], float],
        timeout: float,
    ) -> None:
        self.gone = False  # whether the process that hosts the store is gone, or about to end
        self.closed = False
        self._step, self._lost, self._pause, self._timeout = step, lost, pause, timeout
        self._tasks: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="lightlib-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Begin the next step now."""
        self._wake.set()

    def leave_store(self) -> None:
        """Run no more tasks: the process that hosts the store is about to end."""
        self.gone = True

    def close(self, timeout: float) -> None:
        """End the thread; wait at most `timeout` seconds for it."""
        self.closed = True
        self._wake.set()
        self._thread.join(timeout)

    @property
    def usable(self) -> bool:
        """Whether the thread still runs tasks."""
        return not self.gone and not self.closed and self._thread.is_alive()

    def run(self, task: Callable[[], None]) -> bool:
        """Have the thread run a task that uses the store; return whether it was completed in time."""
        if not self.usable:
            return False
        done, completed = threading.Event(), []

        def noted() -> None:
            task()
            completed.append(True)

        self._tasks.append((noted, done))
        self._wake.set()
        return done.wait(self._timeout) and bool(completed)

    def run_here_or_there(self, task: Callable[[], None]) -> bool:
        """Run a task as `run` does; on the thread itself, run it directly."""
        if threading.current_thread() is not self._thread:
            return self.run(task)
        try:
            task()
        except StoreGoneError:
            return False
        return True

    def run_tasks(self) -> None:
        """Run the tasks of other threads; called by the step."""
        while self._tasks:
            task, done = self._tasks.popleft()
            try:
                task()
            finally:
                done.set()

    def _loop(self) -> None:
        while not self.closed:
            self._wake.wait(self._pause())
            self._wake.clear()
            try:
                self._step()
            except StoreGoneError as error:
                self.gone = True
                self._lost(error)
            except Exception:  # noqa: BLE001, S110  the run may be half built; the next step tries again
                pass
            if self.gone:
                self._give_up_tasks()

    def _give_up_tasks(self) -> None:
        while self._tasks:
            self._tasks.popleft()[1].set()
