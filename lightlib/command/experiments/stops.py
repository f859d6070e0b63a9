"""Stops of a worker: Ctrl-C, SIGTERM, and the time of `--until`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from lightlib.command.experiments.until import calling_at, moment_of
from lightlib.experiment.engines import ray
from lightlib.experiment.work.scheduler import Scheduler
from lightlib.experiment.work.worker import Show

TIMED_OUT = 124  # the exit code of `timeout`


def moment(until: str | None) -> datetime | None:
    """Return the time that ``--until`` names, seen from now; None without it.

    Raises:
        MisconfigurationException: It names none.
    """
    return None if until is None else moment_of(until, datetime.now().astimezone())


@contextmanager
def stopping(worker: Scheduler | ray.RayWorkers, show: Show, until: datetime | None) -> Iterator[list[int]]:
    """Let Ctrl-C, SIGTERM and a time stop a worker; yields the exit codes of those that have arrived."""
    stops: list[int] = []
    lock = threading.RLock()  # the time does not stop a worker again that a signal stops at the same moment

    def stop(number: int, _: Any) -> None:
        with lock:
            stops.append(128 + number)
            if len(stops) > 2:
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), b"\x1b[?25h")  # the cursor, which the board hides
                os._exit(stops[0])
            worker.stop()
        if len(stops) == 1:
            show("Stopping: trials save a checkpoint after their present step. Ctrl-C again ends them at once.")

    def stop_in_time() -> None:
        with lock:
            if stops:
                return
            stops.append(TIMED_OUT)
            worker.stop()
        show("The time is up: trials save a checkpoint after their present step. Ctrl-C ends them at once.")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with calling_at(until, stop_in_time):
            yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
