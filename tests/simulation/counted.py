"""Counts the memory of real steps on the processes of a group, for comparison with a simulation."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lightlib.accelerators.cpu import CPUAccelerator
from lightlib.launch.environment.detect import detect
from lightlib.precision.precision import Precision
from lightlib.simulation.fit import measure
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.mesh_presets import DDPStrategy, FSDPStrategy
from lightlib.strategies.pipeline.pipeline_axis import Pipeline
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib.strategies.strategy import Strategy
from lightlib.torch_private import TorchDispatchMode, generic_kernels
from tests.simulation.models import MODELS

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "ddp": DDPStrategy,
    "zero1": partial(DDPStrategy, zero=True),
    "fsdp": FSDPStrategy,
    "fsdp + checkpointing": partial(FSDPStrategy, activation_checkpointing=True),
    "hsdp": partial(MeshStrategy, replicate=2, shard=-1),
    "tensor": partial(MeshStrategy, tensor=-1),
    "tensor 2, shard 2": partial(MeshStrategy, tensor=2, shard=2),
    "pipeline": partial(MeshStrategy, pipeline=-1),
    "pipeline 2, shard 2": partial(MeshStrategy, pipeline=2, shard=2),
    "interleaved": partial(MeshStrategy, pipeline=Pipeline(2, schedule="interleaved"), replicate=-1),
}
_SETTLED = 2  # looks in a row at which gloo's threads wait for work


class _Settled(TorchDispatchMode):
    """Waits after each collective until gloo's threads have let go of its tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        output = func(*args, **(kwargs or {}))
        if func.namespace == "c10d" and func.__name__.partition(".")[0] not in ("send", "recv_"):
            work = output[-1] if isinstance(output, tuple) else output
            distributed.Work.unbox(work).wait()
        if func.namespace in ("c10d", "_c10d_functional"):
            _settle()
        return output


def _settle() -> None:
    looks = 0
    while looks < _SETTLED:
        time.sleep(0.001)
        looks = looks + 1 if _threads_wait() else 0


def _threads_wait() -> bool:
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):
            state = (thread / "stat").read_text()
            if "(pt_gloo_runloop)" in state and state.rpartition(")")[2].split()[0] != "S":
                return False
    return True


def set_up(strategy: Strategy, precision: str) -> Strategy:
    """Let this process use a strategy, in the group of all."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    strategy.use(CPUAccelerator(), [torch.device("cpu")], Precision.named(precision), detect(processes))
    strategy.setup_environment()
    return strategy


def count(rank: int, cases: Sequence[tuple[str, str, str]]) -> list[Any]:
    """Return the peak and the memory after the last step of each case on this rank, or the error's first line.

    Args:
        rank: Of this process.
        cases: Names of a model, of a strategy (or ``"single_device"``) and of a precision.
    """
    found: list[Any] = []
    for model, name, precision in cases:
        torch.manual_seed(1)
        module, batch = MODELS[model]()
        make = SingleDeviceStrategy if name == "single_device" else STRATEGIES[name]
        try:
            with generic_kernels(), _Settled():
                counted = measure(module, batch, set_up(make(), precision))
            found.append((counted.peak, counted.after))
        except Exception as error:  # noqa: BLE001  compared with the simulation's
            found.append(str(error).partition("\n")[0])
    return found
