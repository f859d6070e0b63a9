"""Scheduler: runs workers of several experiments on the same slots, until nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from multiprocessing import connection

from lightlib.errors import LightlibError
from lightlib.experiment.work.worker import Worker

_POLL = 1.0  # seconds between two looks at the ledgers while nothing ends here
_LOOK = 0.02  # seconds between two looks at the messages of the trials
Ended = Callable[[Worker, LightlibError | None], None]


def _raised(_: Worker, error: LightlibError | None) -> None:
    if error is not None:
        raise error


class Scheduler:
    """Runs the workers of one or several experiments on the same slots.

    A free slot goes to the experiment with the smallest number as its priority; among equal ones to that which uses the
    fewest slots for its weight, and then to the oldest one.

    Args:
        workers: One for each experiment, the oldest first.
        find: Returns workers of experiments that have begun since; it is called every second. Default: none.
        ended: Gets each worker that has nothing left to do, or whose experiment failed, with the error. Default:
            raise it.
    """

    def __init__(
        self, workers: Iterable[Worker], find: Callable[[], list[Worker]] = list, ended: Ended = _raised
    ) -> None:
        self._new, self._find, self._ended = list(workers), find, ended
        self._open: list[Worker] = []
        self._stops = 0

    def stop(self) -> None:
        """Claim nothing more and interrupt the trials; called again, kill them. For any thread."""
        self._stops += 1
        for worker in list(self._open):
            worker.stop()

    def run(self) -> None:
        """Work until all experiments have ended, or `stop` is called.

        Raises:
            LightlibError: Of the first experiment that failed, unless `ended` takes it: the first validation of a
                trial did not log the metric of the searcher, or a storage does not answer.
        """
        due = 0.0  # when to look at the ledgers again, on the monotonic clock
        try:
            while self._enter() or self._open:
                if self._stops or time.monotonic() >= due:
                    due = time.monotonic() + _POLL
                    self._take_turns()
                self._wait()
                for worker in list(self._open):
                    due = 0.0 if self._tried(worker, worker.look) else due
        finally:
            for worker in self._open:
                worker.close()

    def _enter(self) -> bool:
        """Begin with new workers; return whether there are any."""
        new, self._new = self._new, []
        for worker in new:
            worker.begin()
            self._open.append(worker)
            for _ in range(self._stops):  # a signal may have come while it was found
                worker.stop()
        return bool(new)

    def _take_turns(self) -> None:
        if not self._stops:
            self._new += self._find()
            self._enter()
            waiting = [worker for worker in self._open if self._tried(worker, worker.read_ledger)]
            while waiting:
                first = min(waiting, key=lambda worker: worker.turn)
                if not self._tried(first, first.claim):
                    waiting.remove(first)
        for worker in list(self._open):
            if self._tried(worker, worker.is_done):
                self._leave(worker, None)
        if not self._stops and not any(worker.runs for worker in self._open):
            for worker in self._open:
                worker.show_idle()

    def _wait(self) -> None:
        """Wait until a trial ends, or for the time to look at the messages again."""
        handles = [handle for worker in self._open for handle in worker.handles]
        if handles:
            connection.wait(handles, timeout=_LOOK)
        elif self._open:
            time.sleep(_LOOK)

    def _tried(self, worker: Worker, step: Callable[[], bool]) -> bool:
        """Return the result of a step of a worker; if it fails, the worker leaves, and the result is False."""
        try:
            return step()
        except LightlibError as error:
            self._leave(worker, error)
            return False

    def _leave(self, worker: Worker, error: LightlibError | None) -> None:
        self._open.remove(worker)
        worker.close()
        if error is None:
            worker.leave()
        self._ended(worker, error)
