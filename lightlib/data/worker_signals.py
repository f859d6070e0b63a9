"""Worker signals: keep signals that are meant for the run from ending its DataLoader workers."""

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
        if hasattr(signal, "sigwaitinfo"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_exit_on_sigterm_of, args=(multiprocessing.parent_process(),), daemon=True).start()
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


def _exit_on_sigterm_of(parent: Any) -> None:
    """Exit at a SIGTERM from `parent`, or from any process once `parent` has exited; ignore all other SIGTERMs."""
    while True:
        sender = signal.sigwaitinfo({signal.SIGTERM}).si_pid
        if sender == parent.pid or not parent.is_alive():  # with a fork server, os.getppid() is the server
            os._exit(0)
