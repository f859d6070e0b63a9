"""Worker signals: DataLoader workers ignore signals that are meant for the run, and exit with it."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from typing import Any

_SENT_TO_ALL = {number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")}
_SECONDS_TO_LOOK_AGAIN = 1.0


class Undisturbed:
    """A DataLoader's `worker_init_fn`: the worker ignores signals to all processes of a run, until the run has exited.

    Ctrl-C, and the SIGTERM of a cluster that ends a job, also reach the workers, and the run needs their batches up to
    its next step. A SIGTERM from the run itself, with which torch ends a worker that hangs, ends the worker.
    """

    def __init__(self, given: Callable[[int], None] | None) -> None:
        self.given = given

    def __call__(self, worker: int) -> None:
        """Ignore signals from here on; until now `started_undisturbed` has blocked them."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "sigtimedwait"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_exit_with, args=(multiprocessing.parent_process(),), daemon=True).start()
        if "SLURM_JOB_ID" in os.environ:  # Slurm sends the signal before a time limit to all processes of a step
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                if signal.getsignal(number) is signal.SIG_DFL:  # the default would end the worker
                    signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SENT_TO_ALL - {signal.SIGTERM})
        if self.given is not None:
            self.given(worker)


@functools.cache
def started_undisturbed(kind: Any) -> Any:
    """Return a subclass of the loader class `kind` that blocks signals to all while it starts its workers.

    Workers inherit the signals that this thread blocks; those of a fork server do not, because it blocks none.
    """

    def _get_iterator(self: Any) -> Any:
        if not hasattr(signal, "pthread_sigmask"):
            return kind._get_iterator(self)  # noqa: SLF001  of torch's DataLoader
        _start_servers(self.multiprocessing_context or multiprocessing.get_context())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_ALL)
        try:
            return kind._get_iterator(self)  # noqa: SLF001
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(kind.__name__, (kind,), {**names, "_get_iterator": _get_iterator})


def _start_servers(context: Any) -> None:
    """Start the servers that outlive the workers now, so that they do not inherit or change the blocked signals."""
    method = context.get_start_method()
    if method == "forkserver":
        forkserver.ensure_running()
    if method != "fork":
        resource_tracker.ensure_running()


def _exit_with(parent: Any) -> None:
    """Exit once `parent` has exited, or at a SIGTERM from it; ignore all other SIGTERMs.

    torch's workers look for their parent only between batches. Until they exit, forks keep the sockets of a killed rank
    open, so that other ranks wait for it; and each may hold the pipe by which another one notices.
    """
    started_by = os.getppid()  # with a fork server, the server
    while True:
        received = signal.sigtimedwait({signal.SIGTERM}, _SECONDS_TO_LOOK_AGAIN)
        if received is not None and received.si_pid == parent.pid:
            os._exit(0)
        if os.getppid() != started_by or not parent.is_alive():
            os._exit(0)
