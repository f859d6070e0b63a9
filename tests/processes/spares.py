"""Spares: idle forks of a warm program that become the interpreters which it starts."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from lightlib.experiment.machine.processes import FOLLOW_WORKER
from lightlib.launch.start.child import FOLLOW_PARENT
from tests.processes import warm

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_waiting: list[tuple[int, socket.socket]] = []


def stock(number: int, run: Callable[[list[str]], None], starts: int = 0) -> None:
    """Fork `number` spares of this process, which `subprocess.Popen` uses for ``[sys.executable, …]``.

    A spare is a child of this process, as the interpreter would be, and dies with this process. When there is none
    left, or options for Python are among the words, `Popen` starts an interpreter.

    Args:
        number: How many.
        run: What a spare calls with the words behind ``python``.
        starts: How many spares each of them has itself.
    """
    for _ in range(number):
        mine, its = socket.socketpair()
        pid = fork_waiting(mine)
        if pid == 0:
            _wait(its, run, starts)  # ends as a program does
            sys.exit()
        its.close()
        _waiting.append((pid, mine))
    if number:
        subprocess.Popen._execute_child = _execute_child


def fork_waiting(mine: socket.socket) -> int:
    """Fork a process that no signal ends before it calls `wait`; return 0 in it, and its id in this one.

    Args:
        mine: The end of the connection that only this process keeps.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pid = os.fork()
    if pid == 0:
        mine.close()
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return pid


_started = subprocess.Popen._execute_child


def _execute_child(  # the arguments are those of the method that it replaces, from Python 3.10 to 3.13
    self: Any, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
    startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
    errread: int, errwrite: int, restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any,
    start_new_session: bool, *further: Any,
) -> None:  # fmt: skip
    plain = not isinstance(args, (str, bytes, os.PathLike)) and not shell and not pass_fds
    variables = dict(os.environ if env is None else env)
    words, follows = _understood(list(map(str, args)), variables) if plain else ([], False)
    if not words or not _waiting:
        _started(
            self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
            start_new_session, *further,
        )  # fmt: skip
        return
    self.pid, connection = _waiting.pop(0)
    self._child_created = True
    request = {
        "words": words, "follows": follows, "env": variables, "cwd": cwd or os.getcwd(),
        "new_session": start_new_session,
    }  # fmt: skip
    fds = [given if given != -1 else number for number, given in enumerate((p2cread, c2pwrite, errwrite))]
    with connection:
        socket.send_fds(connection, [pickle.dumps(request)], fds)
    self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def _understood(args: list[str], variables: dict[str, str]) -> tuple[list[str], bool]:
    """Return the words after ``python`` that a fork can run, and whether it must die with its parent."""
    if args[:1] != [sys.executable]:
        return [], False
    words = args[1:]
    follows = words[:4] == ["-I", "-S", "-c", FOLLOW_PARENT]  # how lightlib's own launcher starts a rank
    if follows:
        words = words[4:]
    elif words[:3] == ["-c", FOLLOW_WORKER, sys.executable]:  # how a worker starts a trial of several processes
        follows, words = True, words[3:]
    if words[:1] == ["-u"]:
        words = words[1:]
        variables["PYTHONUNBUFFERED"] = "1"
    option = bool(words) and words[0].startswith("-") and words[0] not in ("-c", "-m")
    return ([] if option else words), follows


def _wait(connection: socket.socket, run: Callable[[list[str]], None], starts: int) -> None:
    """Wait idle until this process is needed; then run."""
    for _, other in _waiting:
        other.close()
    _waiting.clear()
    data, fds = wait(connection)
    request = pickle.loads(data)
    if not request["follows"]:
        follow_no_one()
    warm.become(fds, request["env"], request["cwd"], new_session=request["new_session"])
    subprocess.Popen._execute_child = _started
    stock(starts, run)
    run(request["words"])


def wait(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Wait with signals ignored; return the request and its file descriptors. The process ends with its parent."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    data, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    connection.close()
    if not data:  # the program has ended, and this process would be killed in a moment
        os._exit(0)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    return data, fds


def follow_no_one() -> None:
    """Let this process outlive its parent again."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
