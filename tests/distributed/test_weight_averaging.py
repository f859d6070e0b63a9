"""Averages of the weights over processes: the numbers of one device, and resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import EMAWeightAveraging
from tests.distributed.user import BATCH, WIDTH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes

SIZES = {"ddp": 2, "fsdp": 2, "tensor": 1, "pipeline": 1, "zero1": 2}  # processes that read different data
DECAY, EPOCHS = 0.8, 2


class Counted(Net):
    """Has a running mean of the vectors that a process has seen, and remembers each validation."""

    def __init__(self) -> None:
        super().__init__()
        self.validated: list[float] = []

    def on_validation_epoch_end(self) -> None:
        self.validated.append(float(self.trainer.callback_metrics["val_loss"]))


class Mean(nn.Module):
    """Centres a batch by the mean of the batches so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return x - self.mean


def module_of(centred: bool) -> Net:
    module = Counted()
    module.load_state_dict(built().state_dict())
    if centred:
        module.model = nn.Sequential(Mean(), *module.model)
    return module


class Saves(L.Callback):
    """Writes a checkpoint after a step."""

    def __init__(self, path: Path, kind: str, step: int = 4) -> None:
        self.path, self.kind, self.step = path, kind, step

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path, format=self.kind)


def leg(strategy: str, centred: bool = False, saves: L.Callback | None = None, before: Path | None = None) -> Any:
    """Train with a validation in each epoch; return the weights at the end and the losses of the validations."""
    module, options = module_of(centred), quiet.QUIET | {"num_sanity_val_steps": 0, "limit_val_batches": 1.0}
    callbacks = [EMAWeightAveraging(decay=DECAY, update_starting_at_step=1), *([saves] if saves else [])]
    trainer = L.Trainer(**options, strategy=strategy, max_epochs=EPOCHS, callbacks=callbacks)
    loader = DataLoader(data(), BATCH // SIZES[strategy], shuffle=centred)
    trainer.fit(module, loader, DataLoader(data(24, 2), BATCH), ckpt_path=before)
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    return weights, [float(trainer.strategy.broadcast(x, trainer.world_size - 1)) for x in module.validated]


def one_leg(rank: int, strategy: str) -> Any:
    return leg(strategy)


def interrupted(rank: int, strategy: str, path: Path, kind: str) -> Any:
    """Return the results of an uninterrupted run, and of one that resumes in the middle of an epoch."""
    centred = strategy in ("ddp", "fsdp")
    return leg(strategy, centred, Saves(path, kind)), leg(strategy, centred, before=path)


def plain() -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return the averages of a plain loop on one device, and their losses after each epoch."""
    module = built()
    averaged = AveragedModel(module.model, avg_fn=get_ema_avg_fn(DECAY), use_buffers=True)
    optimizer, losses, step = module.configure_optimizers(), [], 0
    for _ in range(EPOCHS):
        for x, y in DataLoader(data(), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module.model(x), y).backward()
            optimizer.step()
            if step >= 1:
                averaged.update_parameters(module.model)
            step += 1
        with torch.no_grad():
            batches = [F.cross_entropy(averaged.module(x), y) for x, y in DataLoader(data(24, 2), BATCH)]
        losses.append(float(sum(batches)) / len(batches))
    return {f"model.{name}": value for name, value in averaged.module.state_dict().items()}, losses


@pytest.mark.parametrize("strategy", SIZES)
def test_the_average_is_that_of_one_device(strategy: str):
    weights, losses = plain()
    found, validated = ranks(2, one_leg, strategy)[0]
    assert found["model.0.weight"].shape == (WIDTH, 4)
    assert list(found) == list(weights)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert validated == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("ddp", "file"), ("fsdp", "file"), ("fsdp", "directory"), ("pipeline", "directory"), ("tensor", "file")],
)
def test_a_resumed_run_ends_with_the_same_bits(strategy: str, kind: str, tmp_path: Path):
    for (weights, losses), (found, found_losses) in ranks(2, interrupted, strategy, tmp_path / "a.ckpt", kind):
        assert list(found) == list(weights)
        assert all(torch.equal(value, weights[name]) for name, value in found.items())
        assert found_losses == losses
