"""Prefetch, pinned memory, streams: batches, weights and checkpoints are those of a plain loop."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import Callback, ModelCheckpoint
from lightlib.data.prefetch import Prefetch
from tests.gpu.case import Case, DiffersError, Figures
from tests.gpu.device import Device
from tests.gpu.training import quiet_trainer

STEPS = 12


class Way(NamedTuple):
    """One way to read batches.

    Attributes:
        workers: Of the loader; with some, the next batch is copied during a step.
        pinned: Whether they are copied from pinned memory.
        slow: Milliseconds by which each step delays the device before it reads its batch.
        kept: Batches that the module keeps, and reads again.
        validates: Whether there is a validation after every three steps.
    """

    workers: int = 2
    pinned: bool = True
    slow: float = 0.0
    kept: int = 0
    validates: bool = False


WAYS = {
    "no workers": Way(0, pinned=False),
    "no workers, pinned": Way(0),
    "workers": Way(pinned=False),
    "workers, pinned": Way(),
    "workers, pinned, slow steps": Way(slow=20.0),
    "workers, pinned, slow steps, kept batches": Way(slow=20.0, kept=3),
    "workers, pinned, slow steps, validation": Way(slow=20.0, validates=True),
}
FABRIC, CHECKPOINTS = "Fabric, workers, pinned, slow steps", "checkpoints in the background"


class Net(L.Module):
    """Two layers; it sums up each batch at the end of its step, when a wrong one may have taken its memory."""

    def __init__(self, device: Device, way: Way) -> None:
        super().__init__()
        self.on, self.way = device, way
        self.network = network(device)
        self.sums: list[Tensor] = []
        self.kept: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.on.busy(self.way.slow)
        x, y = batch
        loss = (self.network(x) - y).square().mean()
        self.kept = [*self.kept, x][-self.way.kept :] if self.way.kept else []
        self.sums += [one.double().sum() for one in (*self.kept, x)]
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.sums.append(batch[0].double().sum())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def network(device: Device) -> nn.Sequential:
    """Return the network, with the same weights at every call."""
    width = _width(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 1))


def cases(device: Device, precisions: Sequence[str]) -> list[Case]:
    return [Case(name) for name in (*WAYS, FABRIC, CHECKPOINTS)]


def run(name: str, device: Device) -> Figures:
    if name == CHECKPOINTS:
        return _checkpoints(device)
    way = WAYS.get(name, Way(slow=20.0))
    expected, sums = by_hand(device, way)
    module = Net(device, way)
    with device.present(), counted() as prefetched:
        if name == FABRIC:
            _by_fabric(module, device, way)
        else:
            batches = {"val_dataloaders": loader(device, Way(way.workers))} if way.validates else {}
            quiet_trainer(device, val_check_interval=3 if way.validates else None, num_sanity_val_steps=0).fit(
                module, loader(device, way), **batches
            )
    if bool(way.workers) != bool(prefetched):
        raise DiffersError(f"{len(prefetched)} batches were prefetched with {way.workers} workers")
    _compare([one.cpu() for one in module.sums], sums, "sum of batch")
    found = [weight.detach().cpu() for weight in module.network.parameters()]
    _compare(found, expected, "parameter")
    return {"batches": STEPS, "prefetched": len(prefetched), "MiB of a batch": _mebibytes(device)}


@contextlib.contextmanager
def counted() -> Iterator[list[None]]:
    """Count the batches that were prefetched."""
    taken, take = list[None](), Prefetch.take

    def noted(self: Prefetch) -> Any:
        taken.append(None)
        return take(self)

    with mock.patch.object(Prefetch, "take", noted):
        yield taken


def by_hand(device: Device, way: Way) -> tuple[list[Tensor], list[Tensor]]:
    """Train in a plain loop that copies each batch when it needs it; return the weights, and the sums of batches."""
    plain = network(device).to(device.own)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    sums, kept, validation = list[Tensor](), list[Tensor](), list(DataLoader(data(device), _rows(device)))
    for number, batch in enumerate(DataLoader(data(device), _rows(device)), 1):
        x, y = (one.to(device.own) for one in batch)
        kept = [*kept, x][-way.kept :] if way.kept else []
        optimizer.zero_grad()
        (plain(x) - y).square().mean().backward()
        optimizer.step()
        sums += [one.double().sum() for one in (*kept, x)]
        if way.validates and number % 3 == 0:
            sums += [one[0].to(device.own).double().sum() for one in validation]
    return [weight.detach().cpu() for weight in plain.parameters()], [one.cpu() for one in sums]


def data(device: Device) -> TensorDataset:
    """Return the samples of all steps."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS * _rows(device), _width(device), generator=generator)
    return TensorDataset(x, x[:, :1].sin())


def loader(device: Device, way: Way) -> DataLoader[Any]:
    pinned = way.pinned and not device.pretended  # without a GPU, torch has no memory to pin
    return DataLoader(data(device), _rows(device), num_workers=way.workers, pin_memory=pinned)


def _by_fabric(module: Net, device: Device, way: Way) -> None:
    fabric = L.Fabric(accelerator=device.accelerator, devices=1)
    wrapped, optimizer = fabric.setup(module.network, torch.optim.SGD(module.network.parameters(), lr=0.01))
    for x, y in fabric.setup_dataloaders(loader(device, way)):
        device.busy(way.slow)
        optimizer.zero_grad()
        fabric.backward((wrapped(x) - y).square().mean())
        optimizer.step()
        module.sums.append(x.double().sum())


class _Weights(Callback):
    """Keeps the weights after each step."""

    def __init__(self) -> None:
        self.by_step: dict[int, Tensor] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.by_step[trainer.global_step] = pl_module.network[0].weight.detach().cpu().clone()


def _checkpoints(device: Device) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        saves = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1, async_save=True)
        seen, module = _Weights(), Net(device, Way())
        trainer = quiet_trainer(device, callbacks=[seen, saves], enable_checkpointing=True)
        trainer.fit(module, loader(device, Way(2)))
        files = {path: torch.load(path, weights_only=True) for path in sorted(Path(folder).glob("*.ckpt"))}
    if len(files) != STEPS:
        raise DiffersError(f"{len(files)} checkpoints of {STEPS} steps")
    for path, content in files.items():
        found, expected = content["state_dict"]["network.0.weight"].cpu(), seen.by_step[content["global_step"]]
        _compare([found], [expected], f"weight in {path.name}: parameter")
    return {"batches": STEPS, "checkpoints": len(files)}


def _compare(found: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> None:
    if len(found) != len(expected):
        raise DiffersError(f"{len(found)} of {what}, expected {len(expected)}")
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if not torch.equal(one, other):
            far = float((one.double() - other.double()).abs().max())
            raise DiffersError(f"{what} {number} differs by at most {far:.3g}")


def _width(device: Device) -> int:
    return 64 if device.pretended else 2048


def _rows(device: Device) -> int:
    return 16 if device.pretended else 1024


def _mebibytes(device: Device) -> float:
    return _width(device) * _rows(device) * 4 / 2**20
