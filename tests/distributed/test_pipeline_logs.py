"""Logs in a pipeline: the step runs once per micro-batch, and logs values of the full batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes

REDUCTIONS = ("mean", "sum", "min", "max")


class Logs(L.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        losses = nn.functional.cross_entropy(self.model(x), y, reduction="none")
        for name in REDUCTIONS:
            self.log(name, getattr(losses, name)(), on_step=True, on_epoch=True, reduce_fx=name)
        if batch_idx == 0:
            self.log("first batch only", 1.0)
        return losses.mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class Rows(L.Callback):
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, trainer: Any, pl_module: Any, metrics: dict[str, float]) -> None:
        self.rows.append(dict(metrics))


def logged(rank: int) -> list[dict[str, float]]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(29, 4, generator=generator), torch.randint(0, 3, (29,), generator=generator)
    rows, size = Rows(), 2 if rank >= 0 else 1
    trainer = L.Trainer(
        **QUIET,
        devices=size,
        strategy="pipeline" if rank >= 0 else "auto",
        max_epochs=2,
        log_every_n_steps=1,
        callbacks=rows,
    )
    trainer.fit(Logs(), DataLoader(TensorDataset(x, y), 8))  # the last batch has 5 samples, and is cut otherwise
    return rows.rows


def test_values_of_steps_and_epochs_are_those_of_one_device() -> None:
    alone = logged(-1)
    assert len(alone) == 10
    for rows in ranks(2, logged):
        assert len(rows) == len(alone)
        for row, expected in zip(rows, alone, strict=True):
            assert row == pytest.approx(expected, rel=1e-5)
