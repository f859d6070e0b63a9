"""The process group: how the processes of a run meet."""

from __future__ import annotations

import atexit
import os
import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.launch.environment import Environment, free_port
from lightlib.launch.network import choose_interface
from lightlib.strategies.collectives import Collectives, ProcessGroup

__all__ = ["DEFAULT_TIMEOUT", "join", "store", "wait_for_all"]

DEFAULT_TIMEOUT = timedelta(minutes=30)
_POLL = 0.02
_met: list[Any] = []
_MARGIN = timedelta(seconds=20)  # the watch names the process that hangs before torch gives up


def join(
    environment: Environment,
    accelerator: Accelerator,
    device: torch.device,
    backend: str | None = None,
    timeout: timedelta | None = None,
) -> Collectives:
    """Return the collectives of all processes; the group is made once per process and used by every later run.

    Args:
        environment: This process's place among all.
        accelerator: Knows the backend that suits the device.
        device: The device of this process.
        backend: Takes the place of the accelerator's.
        timeout: How long a collective waits. Default: 30 minutes.

    Raises:
        MisconfigurationException: A group exists already, of another size.
        LightlibError: Not all processes have come.
    """
    if distributed.is_initialized():
        if distributed.get_world_size() != environment.world_size:
            raise MisconfigurationException(
                f"torch.distributed has a process group of {distributed.get_world_size()} processes already, but "
                f"this strategy is to run in {environment.world_size}.",
                expected="one number of processes for all Trainers of a program.",
                fix="use the same devices= and num_nodes= everywhere, or a program for each.",
            )
        return ProcessGroup(device)
    if backend is None:
        backend = accelerator.default_backend
        backend = f"cpu:gloo,{device.type}:{backend}" if device.type != "cpu" else backend
    if "gloo" in backend:
        choose_interface(environment)
    wait = (timeout or DEFAULT_TIMEOUT) + _MARGIN
    meeting = _meeting_place(environment, wait)
    _met.append(meeting)
    wait_for_all(meeting, environment, wait)
    distributed.init_process_group(
        backend,
        store=PrefixStore("lightlib", meeting),
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=wait,
        device_id=device if device.type == "cuda" else None,
    )
    atexit.register(_leave)
    return ProcessGroup(device)


def _meeting_place(environment: Environment, patience: timedelta) -> Any:
    """Return the store at which all are to meet: one that does not wait for them, which `wait_for_all` does."""
    size = environment.world_size
    if environment.launched and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # else torchrun keeps it
        address, port, first = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), environment.rank == 0
        kind: Any = vars(distributed)["TCPStore"]  # which torch does not say that it exports
        return kind(address, port, size, first, patience, wait_for_workers=False, multi_tenant=True)
    url = "env://" if environment.launched else f"tcp://{environment.address}:{environment.port or free_port()}"
    return next(rendezvous(url, environment.rank, size, timeout=patience))[0]


def wait_for_all(meeting: Any, environment: Environment, patience: timedelta) -> None:
    """Return when all processes have come: within torch a process would not hear Ctrl-C, nor say whom it waits for.

    Args:
        meeting: The store.
        environment: This process's place among all.
        patience: How long to wait.

    Raises:
        LightlibError: Names those that have not come.
    """
    meeting.set(f"lightlib/here/{environment.rank}", "")
    missing, deadline = list(range(environment.world_size)), time.monotonic() + patience.total_seconds()
    while missing:
        if meeting.check([f"lightlib/here/{missing[0]}"]):
            del missing[0]
        elif time.monotonic() < deadline:
            time.sleep(_POLL)
        else:
            missing = [rank for rank in missing if not meeting.check([f"lightlib/here/{rank}"])]
            shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            raise LightlibError(
                f"Rank {environment.rank} has waited {patience.total_seconds():g} s for {len(missing)} of the "
                f"{environment.world_size} processes at {environment.address}:{environment.port}: rank {shown}.",
                expected="all of them, with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
                fix="see what they have printed; DDPStrategy(timeout=...) gives them more seconds.",
            )


def store() -> Any:
    """Return the store at which the processes met, or None when nobody has met through `join`."""
    return _met[-1] if _met else None


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
