"""Runs a function as the ranks of a run, each with a watch; says how each ended and what it wrote."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed

from lightlib.launch.watch import Watch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "lightlib.launch.watch", "tests.launch.ranks"])


class End(NamedTuple):
    """How a rank ended."""

    code: int
    text: str
    seconds: float


def ranks(size: int, body: Callable[[int, Watch], None], limit: float = 100, **options: Any) -> list[End]:
    """Return how each of `size` processes ended that ran ``body(rank, watch)``.

    Args:
        size: How many processes.
        body: At the top level of a module.
        limit: Seconds after which all are killed.
        options: Of the watch, and `patience`, the timeout of gloo in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = [_CONTEXT.Process(target=_run, args=(rank, size, folder, body, options)) for rank in range(size)]
        begun = time.monotonic()
        for process in started:
            process.start()
        ended: dict[int, float] = {}
        while len(ended) < size and time.monotonic() - begun < limit:
            for rank, process in enumerate(started):
                if not process.is_alive():
                    ended.setdefault(rank, time.monotonic() - begun)
            time.sleep(0.02)
        for process in started:
            process.kill()
            process.join()
        texts = [(Path(folder) / f"{rank}.err").read_text() for rank in range(size)]
    hanging = sorted(set(range(size)) - set(ended))
    assert not hanging, f"ranks {hanging} hang; they wrote {texts}"
    return [End(process.exitcode or 0, texts[rank], ended[rank]) for rank, process in enumerate(started)]


def _run(rank: int, size: int, folder: str, body: Callable[[int, Watch], None], options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    file = os.open(f"{folder}/{rank}.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    where = Path(folder) / "port"
    wait = timedelta(seconds=options.pop("patience", 30))
    if rank == 0:
        store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait)
        where.with_suffix(".part").write_text(str(store.port))
        where.with_suffix(".part").rename(where)
    while not where.exists():
        time.sleep(0.01)
    if rank != 0:
        store = distributed.TCPStore("127.0.0.1", int(where.read_text()), wait_for_workers=False, timeout=wait)
    group = distributed.PrefixStore("group", store)
    distributed.init_process_group("gloo", store=group, rank=rank, world_size=size, timeout=wait)
    watch = Watch(store, rank, size, **{"timeout": 60, "poll": 0.1, "grace": 1.0, **options})
    watch.install()
    try:
        body(rank, watch)
    except BaseException:  # noqa: BLE001  a process ends with it
        sys.excepthook(*sys.exc_info())  # multiprocessing would print it itself
        os._exit(1)
    watch._at_exit()
    os._exit(0)
