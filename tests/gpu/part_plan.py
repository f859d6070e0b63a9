"""`lightlib plan` against the device: its peak is at most the allocated one, and not far below it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightlib.precision import Precision
from lightlib.simulation.fit import Counted, simulate
from lightlib.simulation.mailbox import Mailbox, NotSentError
from lightlib.simulation.memory import MemoryCounter
from lightlib.strategies import SingleDeviceStrategy, Strategy
from lightlib.torch_private import generic_kernels, shapes_of_dtensors_unseen
from tests.gpu.case import Case, DiffersError, Figures
from tests.gpu.device import Device
from tests.gpu.training import quiet_trainer
from tests.simulation.counted import STRATEGIES
from tests.simulation.models import convolutions, decoder, mlp

PRECISIONS = ("32-true", "bf16-mixed")
HEADROOM = 0.1  # that `lightlib plan` leaves free by default
WORKSPACES = 96 * 2**20  # of cuBLAS, in torch's allocator, whatever the model
_RANKS = {"tensor 2, shard 2": 4, "hsdp": 4, "pipeline 2, shard 2": 4, "interleaved": 2}  # the rest: 2
_simulated: dict[str, Counted] = {}


def models(device: Device) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Return modules with a batch: large ones for a GPU, so that its workspaces do not matter."""
    if device.pretended:
        return {"mlp": mlp, "decoder": decoder, "convolutions": convolutions}
    return {
        "mlp": lambda: mlp(4096, 12, 4096),
        "decoder": lambda: decoder(1024, 12, 1024, 8),
        "convolutions": convolutions,
    }


def cases(device: Device, precisions: Sequence[str]) -> list[Case]:
    found = []
    for precision in [one for one in PRECISIONS if one in precisions]:
        found += [Case(f"{model}, single_device, {precision}") for model in models(device)]
        for name in STRATEGIES:
            ranks = _RANKS.get(name, 2)
            found.append(Case(f"decoder, {name}, {precision}", devices=ranks, ranks=ranks))
    return found


def prepare(names: Sequence[str], device: Device) -> None:
    """Simulate all cases, before this process belongs to a process group."""
    for name in names:
        _simulated[name] = _simulate(name, device)


def _simulate(name: str, device: Device) -> Counted:
    model, strategy, precision = _parts(name)
    size, own = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    mailbox, waiting = Mailbox(), list(range(size)) if "pipeline" in strategy or strategy == "interleaved" else [own]
    found: dict[int, Counted] = {}
    while own not in found:
        rank = waiting.pop(0)
        module, batch = models(device)[model]()
        try:
            found[rank] = simulate(
                module, batch, _made(strategy), size, 1, Precision.named(precision),
                rank=rank, foreach=not device.pretended, mailbox=mailbox,
            )  # fmt: skip
        except NotSentError:
            waiting.append(rank)
    return found[own]


def run(name: str, device: Device) -> Figures:
    """Train for three steps, and compare the peak of this rank."""
    model, strategy, precision = _parts(name)
    counted = _simulated[name].peak
    torch.manual_seed(0)
    module, batch = models(device)[model]()
    trainer = quiet_trainer(
        device, strategy=_made(strategy), devices=int(os.environ.get("WORLD_SIZE", "1")), precision=precision,
        use_distributed_sampler=False, max_steps=3,
    )  # fmt: skip
    allocated = _peak(lambda: trainer.fit(module, DataLoader([batch] * 3, batch_size=None)), [module], batch, device)
    allowance = allocated - counted
    figures = {"counted MiB": counted / 2**20, "allocated MiB": allocated / 2**20, "allowance": allowance / counted}
    if allowance < 0:
        raise DiffersError(f"the plan counted more than was allocated: {figures}")
    if allowance > HEADROOM * counted + (0 if device.pretended else WORKSPACES):
        raise DiffersError(f"more was allocated than the plan's headroom of {HEADROOM:.0%} and workspaces: {figures}")
    return figures


def _peak(train: Callable[[], None], modules: Sequence[Any], batch: Any, device: Device) -> int:
    """Return the largest number of bytes that a run has allocated on the device of this process."""
    gc.collect()
    if not device.pretended:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device.own)
        before = torch.cuda.memory_allocated(device.own)
        train()
        return torch.cuda.max_memory_allocated(device.own) - before
    counter = MemoryCounter()
    with generic_kernels(), shapes_of_dtensors_unseen(), counter:
        counter.add(parameter for module in modules for parameter in [*module.parameters(), *module.buffers()])
        counter.add([batch])
        train()
    return counter.peak


def _parts(name: str) -> tuple[str, str, str]:
    model, _, rest = name.partition(", ")
    strategy, _, precision = rest.rpartition(", ")
    return model, strategy, precision


def _made(name: str) -> Strategy:
    return SingleDeviceStrategy() if name == "single_device" else STRATEGIES[name]()
