"""Processes of attempts: forked from one that has imported torch, or started as programs."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from lightlib.experiment.current import JOB
from lightlib.experiment.job import JOB_FILE, PASSWORDS, Job
from lightlib.experiment.machine.containers import remove
from lightlib.experiment.trial.forked import STOPS, WORKER, forked
from lightlib.launch.start.child import following

FOLLOW_WORKER = following(WORKER, "sys.argv[1:]")
_WARM = "lightlib.experiment.trial.warm"


class Running(Protocol):
    """A process that runs an attempt, in a session of its own."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def output(self) -> Connection:
        """All that it prints: a pipe, to be read and closed."""

    @property
    def ended(self) -> int | None:
        """An object for `multiprocessing.connection.wait` that is ready at its end; None if there is none."""

    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""

    def send_signal(self, number: int) -> None:
        """Send a signal to its group, or only to it before it has one."""

    def clear(self) -> None:
        """Kill the processes that it has left behind, which still use its slots."""


class Forked:
    """An attempt in a process that was forked from a server, which has imported torch and lightlib once.

    The server has no CUDA context, and no threads but OpenBLAS's. It and the processes end when the worker does.

    Args:
        job: The attempt.
    """

    def __init__(self, job: Job) -> None:
        context = _server()
        self.output, printed = context.Pipe(duplex=False)
        self._process = context.Process(target=forked, args=(job.as_json(), printed, _pid_of_server()))
        self._process.start()
        printed.close()
        self.ended: int | None = self._process.sentinel

    @property
    def pid(self) -> int:
        number: int = self._process.pid
        return number

    def exit_code(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: int) -> None:
        _signal_group(self.pid, number)

    def clear(self) -> None:
        _kill_rest(self.pid)


class Program:
    """An attempt as a program: with several processes, which start each other, or with a command of the user's.

    Args:
        job: The attempt.
    """

    def __init__(self, job: Job) -> None:
        read, write = os.pipe()
        path = _write(job)
        paths = os.pathsep.join([job.context, *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {
            **_inherited(),
            "PYTHONPATH": paths,
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",
            **job.variables,
            JOB: str(path),
            WORKER: str(os.getpid()),
        }
        words = job.command or (sys.executable, "-m", "lightlib.experiment.trial", str(path))
        self._process = subprocess.Popen(  # noqa: S603  the command of the experiment file
            [sys.executable, "-c", FOLLOW_WORKER, *words],
            cwd=job.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(write)
        self.output, self.ended = Connection(read, writable=False), None

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        _signal_group(self._process.pid, number)

    def clear(self) -> None:
        _kill_rest(self._process.pid)


class Contained:
    """An attempt in a container, which ends when the worker does: its standard input is a pipe of the worker.

    Args:
        job: The attempt.
    """

    def __init__(self, job: Job) -> None:
        read, write = os.pipe()
        self._engine = job.container[0]
        self._name = next(option.partition("=")[2] for option in job.container if option.startswith("--name="))
        variables = {**_inherited(), **job.variables, "PYTHONPATH": job.context, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(  # noqa: S603  the image and the command of the experiment file
            job.container,
            cwd=job.folder,
            env={**variables, JOB: str(_write(job))},
            stdin=subprocess.PIPE,
            stdout=write,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(write)
        self.output, self.ended = Connection(read, writable=False), None

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        _signal_group(self._process.pid, number)

    def clear(self) -> None:
        _kill_rest(self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.close()
        remove(self._engine, self._name)


def start(job: Job, processes: int) -> Running:
    """Start an attempt.

    Args:
        job: The attempt.
        processes: Of the trial, those of all its ranks.
    """
    if job.container:
        return Contained(job)
    forks = job.preload and "forkserver" in multiprocessing.get_all_start_methods() and processes == 1
    return Forked(job) if forks and (job.function or not job.command) else Program(job)


def warm_up() -> None:
    """Start the server of forked processes, which imports torch meanwhile."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        _server()
        _pid_of_server()


def _server() -> Any:
    os.environ[WORKER] = str(os.getpid())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_WARM])
    return context


def _pid_of_server() -> int:
    """Return the process id of the server, which is started if it does not run.

    A signal to the group of the worker, as by Ctrl-C, must not reach the server: it would die while it imports, and
    its trials with it.
    """
    resource_tracker.ensure_running()  # it changes the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return forkserver._forkserver._forkserver_pid or 0  # type: ignore[attr-defined]  # noqa: SLF001


def _write(job: Job) -> Path:
    """Write a job for its program, without variables: they may be secrets, and it inherits them."""
    path = Path(job.folder) / JOB_FILE
    path.touch(mode=0o600)
    path.write_text(dataclasses.replace(job, variables={}).as_json())
    return path


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in PASSWORDS}


def _kill_rest(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> None:
    """Signal the group of a process; a forked one has none at its very beginning."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
