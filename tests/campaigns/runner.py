"""Starts the processes of a run by forking this one, which has imported torch, and kills them."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lightlib.launch.environment.environment import HeldPort
from tests.campaigns import phases

PATIENCE = 400.0  # seconds for a run that is not killed; only a hung run takes so long
LAUNCHERS_PATIENCE = 8.0  # seconds for the other ranks to end after one died before the rendezvous
PATIENCE_AFTER_DEATH = 300.0  # seconds for the other ranks to end after one died
NOT_FOR_CHILDREN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Kill:
    """The way a run is killed.

    Attributes:
        number: The signal.
        at: Seconds after the start; None when `trigger` does it.
        rank: Which process gets it; None: all, and their workers.
        trigger: An event at which the process itself sends it.
        twice: Send it again after 30 ms, as a user in a hurry does.
    """

    number: int
    at: float | None = None
    rank: int | None = None
    trigger: phases.Trigger | None = None
    twice: bool = False

    def __str__(self) -> str:
        who = "all" if self.rank is None else f"rank {self.rank}"
        if self.trigger is not None:
            who = "all" if self.trigger.everybody else f"rank {self.rank or 0}"
            when = f"{'after' if self.trigger.after else 'before'} {self.trigger.event} {self.trigger.count}"
        else:
            when = f"at {self.at:.3f} s"
        return f"{signal.Signals(self.number).name}{' twice' if self.twice else ''} to {who} {when}"


@dataclass
class Ended:
    """The end of a run.

    Attributes:
        codes: The exit codes; negative: the signal.
        seconds: From the start to the end of all processes.
        killed: Whether the signal was sent before the run had ended.
        phase: Where it was then.
        hung: Whether processes had to be ended that did not end by themselves.
        by_launcher: Whether one was ended as a launcher does, when it waited for another that had died before they met.
        counts: Events of rank 0.
    """

    codes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    killed: bool = False
    phase: str = ""
    hung: bool = False
    by_launcher: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether all processes came to their end without an error."""
        return not self.hung and not any(self.codes)


def start(
    function: Callable[[], None], size: int, where: Path, kill: Kill | None = None, board: phases.Board | None = None
) -> tuple[list[int], phases.Board]:
    """Fork the processes of a run, in a process group of their own; return their ids and their board."""
    board = board or phases.Board(size)
    held, pids = HeldPort(), []  # each of the processes holds it
    go = mmap.mmap(-1, 1)  # so that no process is ahead of its group
    sys.stdout.flush()
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                os.setpgid(0, pids[0] if pids else 0)
            _child(function, rank, size, held.port, where, kill, board, go)
        pids.append(pid)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pids[0])
    go[0] = 1
    held.close()
    return pids, board


def _child(
    function: Callable[[], None],
    rank: int,
    size: int,
    port: int,
    where: Path,
    kill: Kill | None,
    board: phases.Board,
    go: mmap.mmap,
) -> None:
    code = 1
    try:
        while not go[0]:
            time.sleep(0.001)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _own_streams(where, rank)
        for name in NOT_FOR_CHILDREN:
            os.environ.pop(name, None)
        if size > 1:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            os.environ.update({name: str(value) for name, value in {**place, "MASTER_PORT": port}.items()})
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        torch.set_num_threads(1)
        trigger = kill.trigger if kill is not None and rank == (kill.rank or 0) else None
        phases.watch(board, rank, where, trigger)
        code = _code_of(function)
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001  it must not come out among the frames of the parent
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _own_streams(where: Path, rank: int) -> None:
    where.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(f"{where}.rank{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  for the rest of this process
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    print(f"--- process {os.getpid()}, rank {rank}")


def _code_of(function: Callable[[], None]) -> int:
    """Call `function` as Python runs a program, and return the exit code."""
    try:
        function()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def run(function: Callable[[], None], size: int, where: Path, kill: Kill | None = None) -> Ended:
    """Run to the end, or kill on the way."""
    begun = time.monotonic()
    pids, board = start(function, size, where, kill)
    codes: dict[int, int] = {}
    ended = Ended()
    sent: float | None = None
    again: float | None = None
    died: float | None = None
    while len(codes) < size:
        now = time.monotonic()
        _reap(pids, codes)
        if len(codes) == size:
            break
        if codes and died is None:
            died = now
        if kill is not None and kill.at is not None and sent is None and not codes and now - begun >= kill.at:
            ended.phase, sent = board.phase(kill.rank or 0), now
            _send(pids, kill)
            again = now + 0.03 if kill.twice else None
        if again is not None and now >= again:
            again = None
            _send(pids, kill)
        before_the_meeting = any(board.phase(rank) == "start" for rank in range(size))
        if died is not None and before_the_meeting and now - died > LAUNCHERS_PATIENCE:
            ended.by_launcher = True
            os.killpg(pids[0], signal.SIGKILL)  # as torchrun does at once: only a launcher notices this death
        elif now - begun > PATIENCE or (died is not None and now - died > PATIENCE_AFTER_DEATH):
            ended.hung = True
            os.killpg(pids[0], signal.SIGKILL)
        time.sleep(0.002)
    with contextlib.suppress(OSError):  # workers that outlive their parent
        os.killpg(pids[0], signal.SIGKILL)
    ended.codes = [codes[pid] for pid in pids]
    ended.seconds = time.monotonic() - begun
    ended.counts = board.counts()
    if kill is not None and kill.trigger is not None:
        sent = begun if board.fired(kill.rank or 0) else None
        ended.phase = board.phase(kill.rank or 0, fired=True)
    ended.killed = sent is not None and any(ended.codes)
    return ended


def _send(pids: list[int], kill: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        if kill.rank is None:
            os.killpg(pids[0], kill.number)
        else:
            os.kill(pids[kill.rank], kill.number)


def _reap(pids: list[int], codes: dict[int, int]) -> None:
    for pid in pids:
        if pid not in codes:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)


def shared_tasks(tasks: int) -> Callable[[], int | None]:
    """Return a call that gives each number below `tasks` once, to whichever process asks first."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(number.to_bytes(4, "little") for number in range(tasks)))
    os.close(writer)

    def take() -> int | None:
        data = os.read(reader, 4)
        return int.from_bytes(data, "little") if data else None

    return take


def in_jobs(jobs: int, work: Callable[[], None]) -> bool:
    """Do `work` in so many forked processes at once; return whether all ended well."""
    sys.stdout.flush()
    pids = []
    for _ in range(jobs):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    states = [os.waitpid(pid, 0)[1] for pid in pids]
    return not any(states)
