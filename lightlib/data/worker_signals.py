"""DataLoader workers and signals: one that is meant for the run leaves its workers alone."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from typing import Any

__all__ = ["Undisturbed", "started_undisturbed"]

_TO_ALL = {number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")}


class Undisturbed:
    """A DataLoader's `worker_init_fn`: a signal to all processes of a run leaves its workers to it until it has left.

    Ctrl-C, and the SIGTERM of a cluster that ends a job, reach the workers too, whose batches the run needs to its next
    step. A SIGTERM of the run itself, with which torch ends a worker that hangs, ends it.
    """

    def __init__(self, given: Callable[[int], None] | None) -> None:
        self.given = given

    def __call__(self, worker: int) -> None:
        """Begin what is to last; until here the worker has what `started_undisturbed` blocks."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "sigwaitinfo"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_end_when_asked_by, args=(multiprocessing.parent_process(),), daemon=True).start()
        if "SLURM_JOB_ID" in os.environ:  # which sends the signal before a time limit to all processes of a step
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                if signal.getsignal(number) is signal.SIG_DFL:  # which would end the worker
                    signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_ALL - {signal.SIGTERM})
        if self.given is not None:
            self.given(worker)


@functools.cache
def started_undisturbed(kind: Any) -> Any:
    """Return the class of loaders `kind` whose workers hear no signal to all before their `Undisturbed` has begun.

    They inherit what this thread blocks while it starts them; but not from a fork server, which blocks nothing.
    """

    def _get_iterator(self: Any) -> Any:
        if not hasattr(signal, "pthread_sigmask"):
            return kind._get_iterator(self)  # noqa: SLF001  of torch's DataLoader
        _start_servers(self.multiprocessing_context or multiprocessing.get_context())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _TO_ALL)
        try:
            return kind._get_iterator(self)  # noqa: SLF001
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(kind.__name__, (kind,), {**names, "_get_iterator": _get_iterator})


def _start_servers(context: Any) -> None:
    """Start what outlives the workers: it must not inherit what is blocked for them, nor unblock it when it starts."""
    method = context.get_start_method()
    if method == "forkserver":
        forkserver.ensure_running()
    if method != "fork":
        resource_tracker.ensure_running()


def _end_when_asked_by(parent: Any) -> None:
    """End this process at a SIGTERM of `parent`, or of anybody when that is gone; others are not heard."""
    while True:
        sender = signal.sigwaitinfo({signal.SIGTERM}).si_pid
        if sender == parent.pid or not parent.is_alive():  # a fork server is parent to the system only
            os._exit(0)
