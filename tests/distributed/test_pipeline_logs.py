"""Logs in a pipeline: the step runs once per micro-batch, and logs values of the full batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from tests.processes.ranks import ranks
from tests.runs.plain import Net
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes

REDUCTIONS = ("mean", "sum", "min", "max")


class Logs(Net):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(net=nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        losses = nn.functional.cross_entropy(self.net(x), y, reduction="none")
        for name in REDUCTIONS:
            self.log(name, getattr(losses, name)(), on_step=True, on_epoch=True, reduce_fx=name)
        if batch_idx == 0:
            self.log("first batch only", 1.0)
        return losses.mean()


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


class Silent(Logs):
    def log(self, *args: Any, **kwargs: Any) -> None:
        pass


def broadcasts_of_a_batch(rank: int, kind: type[Logs]) -> int:
    """Return the broadcasts that one more batch takes."""
    counted, broadcast = [0, 0], torch.distributed.broadcast

    def count(*args: Any, **kwargs: Any) -> Any:
        counted[-1] += 1
        return broadcast(*args, **kwargs)

    torch.distributed.broadcast = count
    data = TensorDataset(torch.randn(16, 4), torch.zeros(16, dtype=torch.long))
    for batches in (1, 2):
        counted.append(0)
        trainer = L.Trainer(**QUIET, strategy="pipeline", devices=2, max_epochs=1, limit_train_batches=batches)
        trainer.fit(kind(), DataLoader(data, 8))
    return counted[-1] - counted[-2]


@pytest.mark.parametrize(("kind", "wanted"), [(Silent, 2), (Logs, 3)])
def test_a_batch_is_agreed_on_and_its_loss_sent_with_few_broadcasts(kind: type[Logs], wanted: int) -> None:
    """One for the seed and the shapes, one for losses and weights, and one for logged values if there are any."""
    assert ranks(2, broadcasts_of_a_batch, kind) == [wanted, wanted]
