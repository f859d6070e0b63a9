"""Many ranks as threads with torch's threaded group, and counts of their calls to the file system."""

from __future__ import annotations

import builtins
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import distributed
from torch.testing._internal.distributed import multi_threaded_pg

COUNTED = ("stat", "lstat", "listdir", "scandir", "open", "mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


class Calls:
    """The calls to the file system that each thread makes while they are counted, by name."""

    def __init__(self) -> None:
        self.of_rank: dict[int, Counter[str]] = {}
        self._rank = threading.local()

    def begin(self, rank: int) -> None:
        """Count the calls of this thread from now on."""
        self.of_rank[rank] = self._rank.calls = Counter()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count within the block."""
        with mock.patch.object(builtins, "open", self._wrapped("open", open)):
            patches = [mock.patch.object(os, name, self._wrapped(name, getattr(os, name))) for name in COUNTED]
            for patch in patches:
                patch.start()
            try:
                yield
            finally:
                for patch in patches:
                    patch.stop()

    def _wrapped(self, name: str, call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls = getattr(self._rank, "calls", None)
            if calls is not None:
                calls[name] += 1
            return call(*args, **kwargs)

        return counted


def in_threads(size: int, function: Callable[[int], Any], calls: Calls | None = None) -> list[Any]:
    """Return the results of `function(rank)` for so many ranks, each a thread that has a group of all."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []
    store = distributed.HashStore()

    def work(rank: int) -> None:
        try:
            distributed.init_process_group("threaded", rank=rank, world_size=size, store=store)
            if calls is not None:
                calls.begin(rank)
            results[rank] = function(rank)
        except BaseException as error:  # noqa: BLE001  raised by the caller
            errors.append(error)
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)
        finally:
            distributed.destroy_process_group()

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    multi_threaded_pg._install_threaded_pg()
    try:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        multi_threaded_pg._uninstall_threaded_pg()
        multi_threaded_pg.ProcessLocalGroup.reset()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
    real = [error for error in errors if not isinstance(error, SystemExit)]
    if errors:
        raise (real or errors)[0]
    return results
