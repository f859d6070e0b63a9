"""Hangs: where a rank is, what it waits for, and which ranks keep the others waiting."""

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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType

import torch

__all__ = ["Place", "cpu_clock", "cpu_seconds", "place_of_error", "place_of_thread", "verdict"]

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
    "agree": "the agreement about a stop",
    "end_of_data": "the comparison of where the data end",
}
_COLLECTIVE = ("torch.distributed", "torch.nn.parallel", "lightlib.strategies")
_IN_WATCH = {("lightlib.launch.watch.watch", "agree"), ("lightlib.launch.watch.watch", "end_of_data")}
_CALLS = re.compile(r"\.wait\(|\bdist\.|\bdistributed\.|\bc10d\.")
_WRAPPERS = ("wrapper", "decorator", "inner", "_fn", "_wrapper", "<lambda>")


@dataclass
class Place:
    """Where a rank is.

    Attributes:
        rank: Which one.
        position: Its position in the run; empty when it is in none.
        at: The same in words.
        line: ``train.py:12 training_step``, the innermost line of the user's own code, or an empty string.
        source: What stands there.
        waits: The collective that it waits in, or an empty string.
        does: What it does otherwise, as far as can be told, or an empty string.
        still: Seconds since its position last changed.
    """

    rank: int
    position: tuple[int, ...] = ()
    at: str = ""
    line: str = ""
    source: str = ""
    waits: str = ""
    does: str = ""
    still: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Place:
        place = cls(**json.loads(text))
        place.position = tuple(place.position)
        return place


def place_of_thread(rank: int, thread: int) -> Place:
    """Look where a thread of this process is: its own lines, and the collective it waits in."""
    frames: list[tuple[FrameType, int]] = []
    frame = sys._current_frames().get(thread)  # noqa: SLF001  it is documented, despite its name
    while frame is not None:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _place(rank, frames)


def place_of_error(rank: int, error: BaseException) -> Place:
    """Look where an error was raised, which has left the collective since."""
    frames: list[tuple[FrameType, int]] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frames.insert(0, (trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    place = _place(rank, frames)
    place.waits = place.waits or "a collective"
    return place


def cpu_clock() -> int | None:
    """Return the clock that counts how long the calling thread computes, where the system has one."""
    with contextlib.suppress(AttributeError, OSError):
        return time.pthread_getcpuclockid(threading.get_ident())
    return None


def cpu_seconds(clock: int | None) -> float | None:
    """Read such a clock; None where there is none, where its thread has ended, or where waiting costs time too."""
    if clock is None or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # a wait for a GPU spins
        return None
    with contextlib.suppress(OSError):
        return time.clock_gettime(clock)
    return None


def _place(rank: int, frames: Sequence[tuple[FrameType, int]]) -> Place:
    place = Place(rank, waits=_collective(frames))
    if not place.waits:
        place.does = _activity(frames)
    own = next((pair for pair in frames if not pair[0].f_code.co_filename.startswith(_LIBRARIES)), None)
    if own is not None:
        frame, number = own
        place.line = f"{_short(frame.f_code.co_filename)}:{number} {frame.f_code.co_name}"
        place.source = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()[:120]
    return place


def _collective(frames: Sequence[tuple[FrameType, int]]) -> str:
    """Return what the innermost frames wait in: the outermost function of torch.distributed that they belong to."""
    if frames and _is_own_code(frames[0][0]):  # work.wait() is C: it has no frame
        frame, number = frames[0]
        source = linecache.getline(frame.f_code.co_filename, number, frame.f_globals)
        return f"`{source.strip()[:120]}`" if _CALLS.search(source) else ""
    found = ""
    for frame, _ in frames:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith(_COLLECTIVE) or name == "_engine_run_backward" or (module, name) in _IN_WATCH:
            if name not in _WRAPPERS:
                found = _NAMES.get(name, f"{name} of {module}")
        elif not found and _is_between(module):
            continue
        else:
            break
    return found


def _is_between(module: str) -> bool:
    """Whether a frame may stand between a collective and the innermost one, and says nothing itself."""
    return module.partition(".")[0] in sys.stdlib_module_names or module in ("torch._ops", "torch._tensor")


def _is_own_code(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_LIBRARIES)


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


def verdict(places: Sequence[Place], world_size: int, timeout: float, certain: bool) -> tuple[list[int], str] | None:
    """Say which ranks keep the others waiting.

    Args:
        places: What the ranks answered.
        world_size: How many there are.
        timeout: Seconds after which a rank that does not move is said to hang.
        certain: A collective has failed already, so that nobody can go on.

    Returns:
        The ranks and the message, or None when somebody still moves.
    """
    head = f"No progress for {timeout:g} s."
    silent = sorted(set(range(world_size)) - {place.rank for place in places})
    busy = [place for place in places if not place.waits]
    waiting = [place for place in places if place.waits]
    if silent:
        verb, possessive = ("does", "its") if len(silent) == 1 else ("do", "their")
        said = (
            f"{_ranks(silent)} {verb} not answer: {possessive} process is stopped or gone, or native code holds "
            "the interpreter."
        )
        return silent, " ".join([head, said, *_others(waiting, len(silent))])
    if busy:
        if not certain and any(place.position and place.still < timeout / 2 for place in busy):
            return None
        sentences = [_sentence(place) for place in busy[:8]]
        return [place.rank for place in busy], " ".join([head, *sentences, *_others(waiting, len(busy))])
    if not certain and any(place.still < timeout / 2 for place in waiting):
        return None
    first = min(place.position for place in waiting)
    behind = [place for place in waiting if place.position == first]
    if len(behind) < len(waiting):
        sentences = [_sentence(place) for place in behind[:8]]
        ahead = [place for place in waiting if place.position != first]
        return [place.rank for place in behind], " ".join([head, *sentences, *_others(ahead, len(behind))])
    sentences = [_sentence(place) for place in waiting[:8]]
    alike = len({(place.waits, place.line) for place in waiting}) == 1
    said = (
        "All ranks wait in the same line, and none goes on: their groups or sizes differ, or the network has failed."
        if alike
        else "All ranks wait, not for the same:"
    )
    return [place.rank for place in waiting], " ".join([head, said, *sentences])


def _sentence(place: Place) -> str:
    parts = [f"at {place.at}" if place.at else "outside of the run"]
    if place.waits or place.does:
        parts.append(f"waiting in {place.waits}" if place.waits else place.does)
    text = (
        ", ".join(parts) + (f" in {place.line}" if place.line else "") + (f": `{place.source}`" if place.source else "")
    )
    return f"Rank {place.rank} has been {text}."


def _others(waiting: Iterable[Place], culprits: int) -> list[str]:
    groups: dict[tuple[str, str], list[int]] = {}
    for place in waiting:
        groups.setdefault((place.waits, place.at), []).append(place.rank)
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
