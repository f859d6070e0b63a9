"""Reports where a run is through shared memory, and sends a signal at the n-th event."""

from __future__ import annotations

import builtins
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHASES = ("start", "train", "validate", "end")
FILE_PHASES = ("", "save", "delete")
EVENTS = ("batch", "validation batch", "epoch end", "open", "flush", "rename", "delete")
SIZE = 64
_FIRST = 8  # the counts of events begin here, four bytes each


@dataclass(frozen=True)
class Trigger:
    """A signal to send at the n-th occurrence of an event, by the process in which it occurs.

    Attributes:
        event: One of `EVENTS`.
        count: From 1.
        after: Whether the operation has been done by then.
        number: The signal.
        everybody: Whether all processes of the run get it, or this one alone.
    """

    event: str
    count: int
    after: bool
    number: int
    everybody: bool

    def fire(self) -> None:
        if not self.everybody:
            os.kill(os.getpid(), self.number)
        elif os.fork() == 0:  # from another process: workers check the sender of a signal
            os.killpg(0, self.number)
            os._exit(0)
        if self.number == signal.SIGKILL:
            time.sleep(60)


class Board:
    """Memory that the processes of a run write and the campaign reads; it survives their death."""

    def __init__(self, processes: int) -> None:
        self.memory = mmap.mmap(-1, SIZE * processes)

    def phase(self, rank: int, fired: bool = False) -> str:
        """Return the phase of this process now or at its end; `fired`: when it sent the signal."""
        at = SIZE * rank + (2 if fired else 0)
        return FILE_PHASES[self.memory[at + 1]] or PHASES[self.memory[at]]

    def fired(self, rank: int) -> bool:
        """Whether this process has sent the signal of its trigger."""
        return bool(self.memory[SIZE * rank + 4])

    def counts(self, rank: int = 0) -> dict[str, int]:
        """How often each event has happened."""
        at = SIZE * rank + _FIRST
        return {
            name: int.from_bytes(self.memory[at + 4 * i : at + 4 * i + 4], "little") for i, name in enumerate(EVENTS)
        }


_board: Board | None = None
_at = 0
_trigger: Trigger | None = None
_lock = threading.Lock()


def enter(phase: str) -> None:
    """Set the phase of the run."""
    if _board is not None:
        _board.memory[_at] = PHASES.index(phase)


def event(name: str, after: bool = False) -> None:
    """Count an event that is about to happen, or has happened."""
    if _board is None:
        return
    with _lock:
        start = _at + _FIRST + 4 * EVENTS.index(name)
        count = int.from_bytes(_board.memory[start : start + 4], "little") + (not after)
        _board.memory[start : start + 4] = count.to_bytes(4, "little")
    trigger = _trigger
    if trigger is not None and (trigger.event, trigger.count, trigger.after) == (name, count, after):
        _board.memory[_at + 2 : _at + 4] = _board.memory[_at : _at + 2]
        _board.memory[_at + 4] = 1
        trigger.fire()


def watch(board: Board, rank: int, folder: Path, trigger: Trigger | None) -> None:
    """From now on report to the board where this process is and its operations on files below `folder`."""
    global _board, _at, _trigger  # one process is one rank
    _board, _at, _trigger = board, SIZE * rank, trigger
    inside = str(folder) + os.sep
    for module, name, kind in (
        (os, "open", "open"), (builtins, "open", "open"), (os, "fsync", "flush"), (os, "replace", "rename"),
        (os, "rename", "rename"), (os, "unlink", "delete"), (os, "remove", "delete"), (os, "rmdir", "delete"),
    ):  # fmt: skip
        setattr(module, name, _told(getattr(module, name), kind, inside))


def _told(function: Callable[..., Any], kind: str, inside: str) -> Callable[..., Any]:
    process = os.getpid()

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != process or not _concerns(kind, first, args, inside):
            return function(first, *args, **kwargs)
        assert _board is not None
        if kind != "flush":
            _board.memory[_at + 1] = FILE_PHASES.index("delete" if kind == "delete" else "save")
        event(kind)
        try:
            return function(first, *args, **kwargs)
        finally:
            event(kind, after=True)
            if kind in ("rename", "delete"):
                _board.memory[_at + 1] = 0

    return call


def _concerns(kind: str, first: Any, args: tuple[Any, ...], inside: str) -> bool:
    if kind == "flush":
        return True
    if not isinstance(first, (str, os.PathLike)):
        return False
    path = os.fspath(first)
    if not isinstance(path, str) or not path.startswith(inside):
        return kind == "delete" and isinstance(path, str) and not os.path.isabs(path)  # rmtree names files in a folder
    return kind != "open" or ".part" in path
