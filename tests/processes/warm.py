"""The warm process: torch, lightlib and the tests' tools are imported; it forks children on request.

A new interpreter spends 2 to 4 CPU seconds on imports; a fork of the warm process spends a few hundredths. Each pytest
worker has one warm process, started by its first test that needs it. A child begins as a fresh program would: with
its own environment, working folder and standard streams, and it ends as a program does, through Python's own exit.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import os
import pickle
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Modules that the tests' ranks and programs import sooner or later; every module of lightlib is added.
PRELOADED = (
    "numpy", "pytest", "rich.progress", "tensorboard.backend.event_processing.event_accumulator", "torch",
    "torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp",
    "torch.distributed.nn.functional", "torch.distributed.pipelining", "torch.distributed.tensor.parallel",
    "tests.processes.programs", "tests.processes.ranks", "torch.utils.tensorboard", "torchmetrics", "tqdm.auto",
)  # fmt: skip
_HEADER = struct.Struct("!Q")
_STATUS = struct.Struct("!i")


class Child:
    """A process forked from the warm one, with `wait`, `poll` and signals as in `subprocess.Popen`.

    Attributes:
        pid: The process id.
        status: File descriptor of the pipe in which the warm process writes the exit status.
        returncode: The exit status as `subprocess` has it (negative for a signal), None while it runs.
    """

    def __init__(self, pid: int, status: int) -> None:
        self.pid, self.status = pid, status
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while the child runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the child has ended; raise `TimeoutExpired` if that takes too long."""
        if self.returncode is None:
            if not select.select([self.status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"warm child {self.pid}", timeout or 0.0)
            data = os.read(self.status, _STATUS.size)
            os.close(self.status)
            self.returncode = _STATUS.unpack(data)[0] if data else -signal.SIGKILL  # no data: the warm process is gone
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless the child has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    target: Callable[..., Any],
    *args: Any,
    streams: tuple[int, int, int] | None = None,
    fds: tuple[int, ...] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    new_session: bool = False,
) -> Child:
    """Start a process that calls ``target(*fds, *args)`` and then ends as a program does.

    Args:
        target: A function at the top level of a module.
        args: Pickled.
        streams: File descriptors that become its stdin, stdout and stderr. Default: /dev/null and this process's own.
        fds: Further file descriptors; the target gets the numbers that they have in the child.
        env: All its environment variables. Default: those of this process.
        cwd: Its working folder. Default: that of this process.
        new_session: Whether it leads a session of its own.
    """
    call = io.BytesIO()
    pickle.dump((target, args), call)
    request = {
        "call": call.getvalue(), "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd()),
        "new_session": new_session,
    }  # fmt: skip
    with open(os.devnull) as nothing:
        return _server().ask(request, [*(streams or (nothing.fileno(), 1, 2)), *fds])


def _server() -> _Server:
    if not _servers or _servers[-1].owner != os.getpid():
        _servers.append(_Server())
    return _servers[-1]


class _Server:
    """The warm process, as its client sees it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        mine, its = socket.socketpair()
        command = [sys.executable, "-m", "tests.processes.warm", str(its.fileno())]
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=env, pass_fds=[its.fileno()], stdin=null, stdout=null, start_new_session=True
        )
        its.close()
        self._socket = mine
        atexit.register(self.close)

    def ask(self, request: dict[str, Any], fds: list[int]) -> Child:
        data = pickle.dumps(request)
        status, its_status = os.pipe()
        try:
            socket.send_fds(self._socket, [_HEADER.pack(len(data))], [its_status, *fds])
            self._socket.sendall(data)
            answer = self._socket.recv(_HEADER.size)
        finally:
            os.close(its_status)
        if len(answer) < _HEADER.size:
            os.close(status)
            raise RuntimeError("The warm process has ended; see its stderr for the reason.")
        return Child(_HEADER.unpack(answer)[0], status)

    def close(self) -> None:
        if self.owner == os.getpid():
            self._socket.close()
            self._process.wait(60)


_servers: list[_Server] = []


# in the warm process
def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request; return the request in each child."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    while True:
        ready = select.select([connection, wake], [], [])[0]
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _reap(running)
        if connection not in ready:
            continue
        header, fds, _, _ = socket.recv_fds(connection, _HEADER.size, 64)
        if not header:  # the pytest worker has ended
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        request = pickle.loads(_received(connection, _HEADER.unpack(header)[0]))
        status, *given = fds
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (wake, woken, status, *running.values()):
                os.close(fd)
            connection.close()
            return request, given
        running[pid] = status
        for fd in given:
            os.close(fd)
        connection.sendall(_HEADER.pack(pid))


def _received(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        parts.append(connection.recv(min(size, 1 << 20)))
        size -= len(parts[-1])
    return b"".join(parts)


def _reap(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        fd = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # no process waits for it any more
            os.write(fd, _STATUS.pack(os.waitstatus_to_exitcode(status)))
        os.close(fd)


def become(fds: list[int], env: Mapping[str, str], cwd: str, *, new_session: bool) -> None:
    """Adopt the standard streams, variables, folder and maybe a session, as a new process has them.

    State that lightlib records at its first import is recorded again.
    """
    if new_session:
        os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    tempfile.tempdir = None
    sys.modules["numpy"].random.seed()
    sys.modules["lightlib.start_folder"].remember()
    launcher: Any = sys.modules["lightlib.launch.start.subprocess"]
    if os.environ.get(launcher.PARENT) == str(os.getppid()):
        launcher._hide_interrupts()


def _warm_up() -> None:
    import lightlib

    for name in PRELOADED:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(lightlib.__path__, "lightlib."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    import torch

    lightlib.registry.entry_points("lightlib.loggers")  # read once, as in each process of a user
    torch.set_num_threads(1)
    layer = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    for make in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = make(layer.parameters(), 0.1)
        torch.nn.functional.cross_entropy(layer(torch.ones(2, 2)), torch.tensor([0, 1])).backward()
        optimizer.step()
    torch.manual_seed(torch.default_generator.initial_seed())
    gc.collect()
    gc.freeze()


def _main() -> None:
    _warm_up()
    request, fds = _serve(socket.socket(fileno=int(sys.argv[1])))
    become(fds[:3], request["env"], request["cwd"], new_session=request["new_session"])
    target, args = pickle.loads(request["call"])
    target(*fds[3:], *args)


if __name__ == "__main__":
    _main()
