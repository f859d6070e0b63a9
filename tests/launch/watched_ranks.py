"""Runs a function as the ranks of a run, each with a watch; returns exit codes and output."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import Pipe
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed

from lightlib.launch.watch.hang_report import location_of_thread
from lightlib.launch.watch.timing import Timing
from lightlib.launch.watch.watch import Watch
from tests.processes import warm
from tests.processes.programs import HANGS_AFTER

# Looks often, and gives no rank up: a slow machine changes no outcome. A test shortens only the wait that it is about.
PATIENT = Timing(
    poll=0.02, busy_poll=0.005, look=0.02, arrival=0.05, summary=0.1,
    **dict.fromkeys(
        ("store", "answer", "reason", "grace", "short_grace", "linger", "join", "flush", "before_end", "last_lines"),
        HANGS_AFTER,
    ),
)  # fmt: skip
_STORE_GONE = re.compile(r"^\[rank\d+\]:\[W\S+ \S+ TCPStore\.cpp.*?(\n\n|\Z)", re.MULTILINE | re.DOTALL)
# In a rank:
_ended: list[int] = []  # in rank 0: a pipe that is at its end when all other ranks have ended
_notes: list[distributed.Store] = []


class End(NamedTuple):
    """How a rank ended.

    Attributes:
        code: Its exit code; negative for a signal.
        text: What it wrote, without torch's warning that the store is gone: rank 0 may end before another rank looks.
    """

    code: int
    text: str


def watched_ranks(
    size: int, body: Callable[[int, Watch], None], timing: Timing = PATIENT, timeout: float = HANGS_AFTER
) -> list[End]:
    """Run ``body(rank, watch)`` in `size` processes at once; return how each ended.

    Rank 0, which hosts the store, waits for the other ranks before it writes its last lines, as it does after starting
    them. If a rank hangs, the test fails with the output of all ranks.

    Args:
        size: How many processes.
        body: At the top level of a module.
        timing: Of the watch.
        timeout: Of the watch.
    """
    children: list[warm.Child] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        (all_ready, ready), (go, all_go), (ended, alive) = pipes = [Pipe(duplex=False) for _ in range(3)]
        for pipe_end in (pipe_end for pipe in pipes for pipe_end in pipe):
            stack.enter_context(pipe_end)
        fds = tuple(one.fileno() for one in (ready, go, ended, alive, listening))
        port = listening.getsockname()[1]
        for rank in range(size):
            with open(os.devnull) as nothing, open(f"{folder}/{rank}", "wb") as file:
                streams = (nothing.fileno(), file.fileno(), file.fileno())
                child = warm.fork(_run, rank, size, port, body, timing, timeout, streams=streams, fds=fds)
            stack.callback(child.wait)
            stack.callback(child.kill)
            children.append(child)
        for one in (ready, go, ended, alive, listening):
            one.close()
        all_ready.poll(HANGS_AFTER)
        all_go.close()
        hanging = _hanging(children)
        texts = [_STORE_GONE.sub("", Path(folder, str(rank)).read_text()) for rank in range(size)]
    assert not hanging, f"ranks {hanging} hang; all wrote {texts}"
    return [End(child.wait(), text) for child, text in zip(children, texts, strict=True)]


def _hanging(children: list[warm.Child]) -> list[int]:
    """Wait until all have ended; return the ranks that did not."""
    deadline = time.monotonic() + HANGS_AFTER
    found = []
    for rank, child in enumerate(children):
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            found.append(rank)
    return found


# in a rank
def others_ended() -> None:
    """Wait until all other ranks have ended; for rank 0."""
    os.read(_ended[0], 1)


def tell(note: str) -> None:
    """Release the ranks that wait for this note."""
    _notes[0].set(note, "")


def heard(*notes: str) -> None:
    """Wait until each of these notes is there. No line of this looks like a collective to the watch."""
    while not _notes[0].check(list(notes)):
        time.sleep(0.002)


def is_at(rank: int, thread: int, at: str) -> bool:
    """Whether a thread is at a line, or in a collective and has no Python left to run before it waits."""
    place, frame = location_of_thread(rank, thread), sys._current_frames()[thread]
    waits = ".wait(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return place.source == at or (place.waits == at and (waits or frame.f_code.co_name == "_engine_run_backward"))


def _run(
    ready: int, go: int, ended: int, alive: int, listening: int,
    rank: int, size: int, port: int, body: Callable[[int, Watch], None], timing: Timing, timeout: float,
) -> None:  # fmt: skip
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for fd in (alive,) if rank == 0 else (ended, listening):
        os.close(fd)
    _ended[:] = [ended]
    wait = timedelta(seconds=HANGS_AFTER)
    master = {"is_master": True, "master_listen_fd": listening} if rank == 0 else {}
    store = distributed.TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=wait, **master)
    group = distributed.PrefixStore("group", store)
    distributed.init_process_group("gloo", store=group, rank=rank, world_size=size, timeout=wait)
    before_end = others_ended if rank == 0 else None
    watch = Watch(store, rank, size, timeout, timing=timing, before_end=before_end)
    watch.install()
    _notes[:] = [distributed.PrefixStore("notes", store)]
    os.close(ready)
    os.read(go, 1)
    try:
        body(rank, watch)
    except BaseException:  # noqa: BLE001  as at the top of a program, which ends with it
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    watch._at_exit()
    os._exit(0)
