"""The beginning of an attempt in a process that was forked for it, and its end with the worker."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

from lightlib.experiment.job import PASSWORDS, Job

WORKER = "LIGHTLIB_WORKER"  # a variable: the process id of the worker
STOPS = (signal.SIGINT, signal.SIGTERM)  # blocked in the server
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def forked(text: str, output: Connection, parent: int) -> None:
    """Run an attempt in a process that was forked for it.

    Args:
        text: The `Job` as JSON.
        output: Gets all that the process prints.
        parent: The process that forked it, with which it ends.
    """
    os.setsid()
    follow(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the interpreter's own
    job = Job.from_json(text)
    for name in PASSWORDS:
        os.environ.pop(name, None)
    os.environ.update(job.variables)
    from lightlib.experiment.trial.program import run  # optional: torch, which the worker does not need

    run(job)


def follow(parent: int) -> None:
    """End this process when its parent ends, where the system can.

    Args:
        parent: Its process id. If it has ended before, this process ends at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
