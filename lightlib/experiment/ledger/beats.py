"""Beats: signs of life of the owners of attempts, judged without comparing clocks."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lightlib.experiment.ledger.attempt import OWNER, Attempt

if TYPE_CHECKING:
    from lightlib.experiment.ledger.ledger import Ledger

_BEAT = "beat"
_EVERY = 0.5  # seconds between two looks at the same owner


class Beats(Protocol):
    """Where owners leave signs of life."""

    def send(self, attempt: Attempt) -> None:
        """Leave one that differs from the last."""

    def last(self, attempt: Attempt) -> object:
        """Return the last one, which need only be comparable with itself; None if there is none."""


class BeatFiles:
    """Beats as files next to a journal, which would grow with each beat.

    Args:
        folder: Of the experiment.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "beats"
        self._folder.mkdir(exist_ok=True)

    def send(self, attempt: Attempt) -> None:
        path = self._folder / str(attempt.number)
        path.write_text(str(time.time_ns()))

    def last(self, attempt: Attempt) -> object:
        try:
            return (self._folder / str(attempt.number)).read_text()
        except FileNotFoundError:
            return None


class BeatRows:
    """Beats as an attribute in a database, which keeps the last one only."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def send(self, attempt: Attempt) -> None:
        self._ledger.write(attempt, _BEAT, time.time_ns())

    def last(self, attempt: Attempt) -> object:
        return attempt.attribute(_BEAT)  # read with the rest of it just now


class Watch:
    """Decides whether the owner of an attempt is dead.

    An owner on this machine is dead when its process has ended. Any other one is dead when this worker has seen no
    new beat for `grace` seconds of its own clock: the clocks of machines are never compared. If that is wrong, because
    the owner only slept, the attempt is repeated from its newest checkpoint, and the owner's results do not count.

    Args:
        beats: Where owners leave their beats.
        grace: In seconds.
        clock: Returns seconds that never go back.
    """

    def __init__(self, beats: Beats, grace: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._beats, self._grace, self._clock = beats, grace, clock
        self._seen: dict[int, tuple[object, float]] = {}
        self._asked: dict[int, float] = {}  # when it was last found alive

    def is_dead(self, attempt: Attempt) -> bool:
        """Whether the owner of a running attempt is dead; one that was alive half a second ago is not.

        Args:
            attempt: In a fresh snapshot.
        """
        now = self._clock()
        if now - self._asked.get(attempt.number, -math.inf) < _EVERY:
            return False
        dead = has_ended(attempt.attribute(OWNER) or {}) or self._is_silent(attempt, now)
        if not dead:
            self._asked[attempt.number] = now
        return dead

    def _is_silent(self, attempt: Attempt, now: float) -> bool:
        beat = self._beats.last(attempt)
        last, since = self._seen.setdefault(attempt.number, (beat, now))
        if beat != last:
            self._seen[attempt.number] = beat, now
            return False
        return now - since > self._grace


def this_process() -> dict[str, Any]:
    """Return the identity of this process, unique over all machines, as plain values."""
    return dict(_process(os.getpid()))


@cache
def _process(pid: int) -> dict[str, Any]:
    return {"host": socket.gethostname(), "space": _space(), "pid": pid, "started": _started(pid)}


def has_ended(owner: Mapping[str, Any]) -> bool:
    """Whether a process of this machine has ended; False for one of another machine, which cannot be seen."""
    here = this_process()
    if owner.get("started") is None or any(owner.get(name) != here[name] for name in ("host", "space")):
        return False
    return bool(_started(owner["pid"]) != owner["started"])


def _space() -> str | None:
    """Return an identity of the running system and its numbering of processes; None where that is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """Return when a process started, in ticks since the system did; None if there is none or it is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
