"""Runs a function as the ranks of a run, each forked from the warm process."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from lightlib.launch.environment.environment import HeldPort
from tests.processes import warm

HANGS_AFTER = 500.0  # seconds; only a hung test takes so long
GRACE = 20.0  # seconds for the other ranks to report their errors after one has failed


def ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Return the result of ``function(rank, *args)`` on each of `size` ranks.

    Each rank is a new process with the variables that a launcher sets, an empty working folder, and one thread. When
    one fails, so does the test, with the traceback of each rank that raised.

    Args:
        size: Number of ranks.
        function: At the top level of a module.
        args: Anything that can be pickled.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(HeldPort()) as held:
        world = [_Rank(rank, size, held.port, folder, function, args) for rank in range(size)]
        try:
            _collect(world)
        finally:
            for rank in world:
                rank.end()
    failed = [f"rank {number}: {rank.failure}" for number, rank in enumerate(world) if rank.failure]
    if failed:
        raise AssertionError("\n".join(failed))
    return [rank.result for rank in world]


class _Rank:
    """One rank, seen from the test.

    Attributes:
        result: What its function returned.
        failure: Why there is none.
    """

    def __init__(self, rank: int, size: int, port: int, folder: str, function: Callable[..., Any], args: Any) -> None:
        self.result: Any = None
        self.failure = f"no end within {HANGS_AFTER:g} s, or within {GRACE:g} s of another rank's failure"
        self.connection, its = multiprocessing.Pipe()
        cwd = f"{folder}/work{rank}"
        os.mkdir(cwd)
        env = {**os.environ, **_variables(rank, size, port)}
        self._child = warm.fork(_run, function, rank, args, fds=(its.fileno(),), env=env, cwd=cwd)
        its.close()

    def receive(self) -> None:
        """Read the outcome, which is there."""
        try:
            kind, self.result = torch.load(io.BytesIO(self.connection.recv_bytes()), weights_only=False)
            self.failure = "" if kind == "returned" else f"\n{self.result}"
        except EOFError:
            self.failure = f"ended with exit code {self._child.wait()} and without a result"

    def end(self) -> None:
        """Kill the process unless it has ended."""
        self._child.kill()
        self._child.wait()
        self.connection.close()


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {name: str(value) for name, value in numbers.items()} | {
        "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"
    }  # fmt: skip


def _collect(world: list[_Rank]) -> None:
    """Receive the outcome of each rank."""
    pending = {rank.connection: rank for rank in world}
    deadline = time.monotonic() + HANGS_AFTER
    while pending:
        ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
        if not ready:
            return
        for connection in ready:
            rank = pending.pop(connection)
            rank.receive()
            if rank.failure:
                deadline = min(deadline, time.monotonic() + GRACE)


# in a rank
def _run(connection_fd: int, function: Callable[..., Any], rank: int, args: Any) -> None:
    connection = Connection(connection_fd)
    torch.set_num_threads(1)
    try:
        outcome = ("returned", function(rank, *args))
    except BaseException:  # noqa: BLE001  the test reports every exception
        outcome = ("raised", traceback.format_exc())
    data = io.BytesIO()
    torch.save(outcome, data)
    connection.send_bytes(data.getvalue())
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # a rank that waits for this one in a collective fails now
    if rank == 0:  # it hosts the store, which the other ranks use until they end
        with contextlib.suppress(EOFError):
            connection.recv_bytes()
    os._exit(0)
