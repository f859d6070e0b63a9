"""The process group: its backend, and how the processes of a run join and leave it."""

from __future__ import annotations

import atexit
import contextlib
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore

from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import MisconfigurationException, owner
from lightlib.launch.environment.detect import Environment
from lightlib.launch.environment.network import choose_interface
from lightlib.strategies.group.attempt import ended_if_replaced
from lightlib.strategies.group.collectives import Collectives, ProcessGroup
from lightlib.strategies.group.rendezvous import meeting_place, prefix_of_attempt
from lightlib.torch_private import default_store

DEFAULT_TIMEOUT = timedelta(minutes=30)
_met: list[tuple[Any, str]] = []
_MARGIN = timedelta(seconds=20)  # the watch names the process that hangs before torch gives up
_GLOO_THREAD = "pt_gloo_runloop"
_SECONDS_TO_STIR = 0.01  # a thread that waits for Python's lock requests it every 5 ms
_SECONDS_TO_REST = 2.0


def join(
    environment: Environment,
    accelerator: Accelerator,
    device: torch.device,
    backend: str | None = None,
    timeout: timedelta | None = None,
) -> Collectives:
    """Return the collectives of all processes; the group is made once per process and used by every later run.

    A group that the program or its launcher (Ray Train) has made is used as it is, with its store. A collective waits
    for the `timeout`: 30 minutes by default.

    Raises:
        MisconfigurationException: A group exists already, of another size.
        LightlibError: Not all processes have come, or the port of rank 0 is in use.
    """
    if distributed.is_initialized():
        if distributed.get_world_size() != environment.world_size:
            raise MisconfigurationException(
                f"torch.distributed has a process group of {distributed.get_world_size()} processes already, but "
                f"this strategy is to run in {environment.world_size}.",
                expected=f"one number of processes for every {owner()} of a program.",
                fix="use the same devices= and num_nodes= everywhere, or a program for each.",
            )
        if not _met:
            _met.append((default_store(), ""))
        return ProcessGroup(device, accelerator=accelerator)
    if backend is None:
        backend = accelerator.default_backend
        backend = f"cpu:gloo,{device.type}:{backend}" if device.type != "cpu" else backend
    if "gloo" in backend:
        choose_interface(environment)
    wait = (timeout or DEFAULT_TIMEOUT) + _MARGIN
    meeting = meeting_place(environment, wait)
    attempt = prefix_of_attempt(meeting, environment, wait)
    _met.append((meeting, attempt))
    with ended_if_replaced(meeting, attempt, environment.rank) if attempt else contextlib.nullcontext():
        distributed.init_process_group(
            backend,
            store=PrefixStore(f"lightlib/{attempt}" if attempt else "lightlib", meeting),
            rank=environment.rank,
            world_size=environment.world_size,
            timeout=wait,
            device_id=accelerator.group_device(device),
        )
    atexit.register(_leave)
    return ProcessGroup(device, accelerator=accelerator)


def refuse_without_collectives(strategy: str, accelerator: Accelerator) -> None:
    """Refuse a kind of device if no backend of torch.distributed exchanges its tensors."""
    if not accelerator.has_collectives:
        name = accelerator.name()
        raise MisconfigurationException(
            f"The strategy {strategy} with accelerator={name!r}, whose tensors torch.distributed cannot exchange.",
            expected="strategy='auto' or 'single_device': one process.",
            fix=f"{owner()}(accelerator={name!r}), or {owner()}(accelerator='cpu', devices=…) for several processes.",
        )


def store() -> tuple[Any, str] | None:
    """Return the store at which the processes met and the name of this attempt (or ""), or None without a `join`."""
    return _met[-1] if _met else None


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
    _let_threads_rest()


def _let_threads_rest() -> None:
    """Give gloo's threads the time to let go of the tensors of the last collectives.

    They need Python's lock for it. Until 3.14, Python ends a thread that waits for its lock when Python itself ends;
    torch then aborts the process (https://github.com/pytorch/pytorch/issues/190489). While this thread sleeps one that
    waits would stir.
    """
    deadline = time.monotonic() + _SECONDS_TO_REST
    before: dict[str, list[str]] = {}
    while (now := _gloo_threads()) and time.monotonic() < deadline:
        if now == before and all("sleeping" in state[0] for state in now.values()):
            return
        before = now
        time.sleep(_SECONDS_TO_STIR)


def _gloo_threads() -> dict[str, list[str]]:
    """Return the state of each of gloo's threads, and how often it was woken; on Linux only."""
    states = {}
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # the thread has ended
            if (thread / "comm").read_text().strip() == _GLOO_THREAD:
                lines = (thread / "status").read_text().splitlines()
                states[thread.name] = [line for line in lines if line.startswith("State:") or "ctxt_switches:" in line]
    return states
