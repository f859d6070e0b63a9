"""Hang report: the location of each rank, its collective, and the ranks that block the rest."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).resolve().parents[2])
_PATHS = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), _TORCH, _OWN}
_LIBRARIES = (*(f"{path}{os.sep}" for path in _PATHS), "<frozen")
_NAMES = {
    "all_reduce": "the all-reduce",
    "all_gather": "the all-gather",
    "all_gather_into_tensor": "the all-gather",
    "all_gather_object": "the all-gather of objects",
    "barrier": "a barrier",
    "broadcast": "a broadcast",
    "broadcast_object_list": "the broadcast of an object",
    "reduce_scatter_tensor": "the reduce-scatter",
    "_engine_run_backward": "the all-reduce of gradients (backward)",
    "agree": "the agreement on a stop",
    "end_of_data": "the comparison of the numbers of batches",
}
_COLLECTIVE = ("torch.distributed", "torch.nn.parallel", "lightlib.strategies")
_IN_WATCH = {("lightlib.launch.watch.watch", "agree"), ("lightlib.launch.watch.watch", "end_of_data")}
_CALLS = re.compile(r"\.wait\(|\bdist\.|\bdistributed\.|\bc10d\.")
_WRAPPERS = ("wrapper", "decorator", "inner", "_fn", "_wrapper", "<lambda>")


@dataclass(frozen=True)
class RankLocation:
    """The location of a rank; unknown values are empty."""

    rank: int
    position: tuple[int, ...] = ()  # in the run
    at: str = ""  # the position in words
    line: str = ""  # ``train.py:12 training_step``, the innermost line of the user's code
    source: str = ""  # the source text of that line
    waits: str = ""  # the collective in which it waits
    does: str = ""  # its activity if it does not wait
    still: float = 0.0  # seconds since its position last changed

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankLocation:
        values = json.loads(text)
        return cls(**{**values, "position": tuple(values["position"])})


def location_of_thread(rank: int, thread: int) -> RankLocation:
    """Return the location of a thread of this process: the user's line, and the collective in which it waits."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  it is documented, despite its name
    return _location(rank, [] if frame is None else list(traceback.walk_stack(frame)))


def location_of_error(rank: int, error: BaseException) -> RankLocation:
    """Return the location at which an error was raised; its collective has ended since."""
    location = _location(rank, list(traceback.walk_tb(error.__traceback__))[::-1])
    return replace(location, waits=location.waits or "a collective")


def cpu_clock() -> int | None:
    """Return the CPU-time clock of the calling thread, if the system has one."""
    with contextlib.suppress(AttributeError, OSError):
        return time.pthread_getcpuclockid(threading.get_ident())
    return None


def cpu_seconds(clock: int | None) -> float | None:
    """Read a CPU-time clock; None if there is none, its thread has ended, or waiting would count as computing."""
    if clock is None or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # a wait for a GPU spins
        return None
    with contextlib.suppress(OSError):
        return time.clock_gettime(clock)
    return None


def _location(rank: int, frames: Sequence[tuple[FrameType, int]]) -> RankLocation:
    waits = _collective(frames)
    location = RankLocation(rank, waits=waits, does="" if waits else _activity(frames))
    users = next((pair for pair in frames if _is_own_code(pair[0])), None)
    if users is None:
        return location
    frame, number = users
    line = f"{_short(frame.f_code.co_filename)}:{number} {frame.f_code.co_name}"
    return replace(location, line=line, source=_source(frame, number)[:120])


def _collective(frames: Sequence[tuple[FrameType, int]]) -> str:
    """Return the collective in which the innermost frames wait: the outermost torch.distributed function of them."""
    if frames and _is_own_code(frames[0][0]):  # work.wait() is C: it has no frame
        source = _source(*frames[0])
        return f"`{source[:120]}`" if _CALLS.search(source) else ""
    collective = ""
    for frame, _ in frames:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith(_COLLECTIVE) or name == "_engine_run_backward" or (module, name) in _IN_WATCH:
            if name not in _WRAPPERS:
                collective = _NAMES.get(name, f"{name} of {module}")
        elif not collective and _is_between(module):
            continue
        else:
            break
    return collective


def _is_between(module: str) -> bool:
    """Whether frames of this module may be inside a collective without being one."""
    return module.partition(".")[0] in sys.stdlib_module_names or module in ("torch._ops", "torch._tensor")


def _is_own_code(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_LIBRARIES)


def _source(frame: FrameType, number: int) -> str:
    return linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()


def _activity(frames: Sequence[tuple[FrameType, int]]) -> str:
    for frame, _ in frames:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("torch.utils.data"):
            return "waiting for the next batch of the DataLoader"
        if not _is_between(module):
            break
    return ""


def _short(file: str) -> str:
    try:
        relative = os.path.relpath(file) if os.path.isabs(file) else file
    except (OSError, ValueError):  # the working directory is gone, or on another drive
        return file
    return file if relative.startswith("..") else relative


def verdict(
    locations: Sequence[RankLocation], world_size: int, timeout: float, certain: bool, ended: bool = False
) -> tuple[list[int], str] | None:
    """Return the ranks that block the rest, and the message; None if a rank still makes progress.

    If `certain`, a collective has failed already, so no rank can continue. If `ended`, ranks wait at the end of their
    data: then only a rank that does not answer blocks them.
    """
    head = "The data of other ranks have ended, and they wait." if ended else f"No progress for {timeout:g} s."
    silent = sorted(set(range(world_size)) - {location.rank for location in locations})
    busy = [location for location in locations if not location.waits]
    waiting = [location for location in locations if location.waits]
    if silent:
        verb, possessive = ("does", "its") if len(silent) == 1 else ("do", "their")
        cause = (
            f"{_ranks(silent)} {verb} not answer: {possessive} process is stopped or gone, or native code holds "
            "the interpreter."
        )
        return silent, " ".join([head, cause, *_waiting_ranks(waiting, len(silent))])
    if ended:
        return None
    moving = [location for location in busy if location.position] if busy else waiting
    if not certain and any(location.still < timeout / 2 for location in moving):
        return None
    first = min((location.position for location in waiting), default=())
    behind = busy or [location for location in waiting if location.position == first]
    ahead = waiting if busy else [location for location in waiting if location.position != first]
    sentences = [_sentence(location) for location in behind[:8]]
    if busy or ahead:
        return [location.rank for location in behind], " ".join([head, *sentences, *_waiting_ranks(ahead, len(behind))])
    same_line = len({(location.waits, location.line) for location in waiting}) == 1
    cause = (
        "All ranks are blocked in the same line: their groups or tensor sizes differ, or the network has failed."
        if same_line
        else "The ranks are blocked in different collectives:"
    )
    return [location.rank for location in waiting], " ".join([head, cause, *sentences])


def _sentence(location: RankLocation) -> str:
    parts = [f"at {location.at}" if location.at else "outside of the run"]
    if location.waits or location.does:
        parts.append(f"waiting in {location.waits}" if location.waits else location.does)
    text = (
        ", ".join(parts)
        + (f" in {location.line}" if location.line else "")
        + (f": `{location.source}`" if location.source else "")
    )
    return f"Rank {location.rank} has been {text}."


def _waiting_ranks(waiting: Iterable[RankLocation], culprits: int) -> list[str]:
    groups: dict[tuple[str, str], list[int]] = {}
    for location in waiting:
        groups.setdefault((location.waits, location.at), []).append(location.rank)
    whom = "it" if culprits == 1 else "them"
    return [
        f"{_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for {whom} in {waits}{f' of {at}' if at else ''}."
        for (waits, at), ranks in groups.items()
    ]


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    if len(ranks) > 8:
        return f"Ranks {shown}, … ({len(ranks)} in all)"
    return f"Rank{'s' if len(ranks) > 1 else ''} {shown}"
