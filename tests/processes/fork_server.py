"""Warm fork server: that of multiprocessing in a program of a test, with its imports made."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from multiprocessing import util
from typing import Any

from tests.processes import spares

_HIGH = 500  # a number of file descriptors that no program of a test comes to
_AGAIN = "lightlib.experiment.trial.warm"  # its import makes the server follow its worker
_stock: list[tuple[int, socket.socket]] = []


def stock() -> None:
    """Fork a spare of this process that becomes its fork server, once it starts one.

    Only the imports have been made: variables, folder, blocked signals and file descriptors are those that the server
    gets from the program, which is its parent.
    """
    mine, its = socket.socketpair()
    pid = spares.fork_waiting(mine)
    if pid == 0:
        _serve(its)
    its.close()
    _stock.append((pid, mine))
    util.spawnv_passfds = _spawn


_started = util.spawnv_passfds


def _spawn(path: bytes | str, words: Sequence[str], fds: Sequence[int]) -> int:
    if not _stock or "multiprocessing.forkserver" not in str(words[-1]):
        return _started(path, words, fds)
    pid, connection = _stock.pop()
    request = {
        "code": words[-1], "fds": list(fds), "env": dict(os.environ), "cwd": os.getcwd(),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    }  # fmt: skip
    with connection:
        socket.send_fds(connection, [pickle.dumps(request)], list(fds))
    return pid


def _serve(connection: socket.socket) -> None:
    """Wait until the program starts its server; then be it."""
    data, received = spares.wait(connection)
    request: dict[str, Any] = pickle.loads(data)
    spares.follow_no_one()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(high, request["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    util.spawnv_passfds = _started
    sys.modules.pop(_AGAIN, None)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    code = 1
    try:
        exec(request["code"], {"__name__": "__main__"})
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        os._exit(code)
