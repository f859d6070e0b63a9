"""Runs a function in several processes that are forked from one in which torch is imported already."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lightlib.launch.place import HeldPort

_PRELOAD = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining"]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([*_PRELOAD, "torch.distributed.checkpoint.state_dict", "lightlib", "torchmetrics"])


def processes(size: int, function: Callable[..., Any], *args: Any, timeout: float = 150) -> list[Any]:
    """Return what ``function(rank, *args)`` returns in each of `size` processes, which find each other by variables.

    Args:
        size: How many processes.
        function: At the top level of a module.
        args: Plain values.
        timeout: Seconds, after which all are ended and the test fails.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(HeldPort()) as held:
        started = [
            _CONTEXT.Process(target=_run, args=(rank, size, held.port, folder, function, args), daemon=True)
            for rank in range(size)
        ]
        for process in started:
            process.start()
        deadline = time.monotonic() + timeout
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
        hanging = [rank for rank, process in enumerate(started) if process.is_alive()]
        for process in started:
            process.kill()
            process.join()
        results = [_result(Path(folder) / str(rank)) for rank in range(size)]
    failed = [f"rank {rank}:\n{result[1]}" for rank, result in enumerate(results) if result[0] != "returned"]
    if hanging or failed:
        raise AssertionError("\n".join([f"hanging after {timeout} s: ranks {hanging}" if hanging else "", *failed]))
    return [result[1] for result in results]


def _result(path: Path) -> tuple[str, Any]:
    return torch.load(path, weights_only=False) if path.exists() else ("died", "it ended without a word")


def _run(rank: int, size: int, port: int, folder: str, function: Callable[..., Any], args: Any) -> None:
    torch.set_num_threads(1)
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    where = Path(folder) / f"work{rank}"
    where.mkdir()
    os.chdir(where)
    try:
        outcome = ("returned", function(rank, *args))
    except BaseException:  # noqa: BLE001  whatever it is, the test is told
        outcome = ("raised", traceback.format_exc())
    data = io.BytesIO()
    torch.save(outcome, data)
    (Path(folder) / f"{rank}.part").write_bytes(data.getvalue())
    (Path(folder) / f"{rank}.part").rename(Path(folder) / str(rank))
    if torch.distributed.is_initialized() and outcome[0] == "returned":
        torch.distributed.destroy_process_group()
    if rank == 0:  # keeps the store in which the others look as long as they run
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not all((Path(folder) / str(other)).exists() for other in range(size)):
            time.sleep(0.02)
    os._exit(0)
