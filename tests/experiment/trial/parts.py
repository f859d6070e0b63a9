"""A module and a data module with a few records, for fits of trials in tests."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from tests.runs.modules import Regression


class Line(Regression):
    """A straight line; it counts its steps and validations."""

    def __init__(self, lr: float = 0.05, layers: dict[str, Any] | None = None):
        super().__init__(3)
        self.lr, self.layers = lr, layers
        self.batches = 0
        self.validated: list[int] = []

    def training_step(self, batch, batch_idx):
        self.batches += 1
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.batches)
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class BareLine(Line):
    """A straight line; its optimizer is configured separately."""

    configure_optimizers = Module.configure_optimizers


class OpenLine(Line):
    """A straight line with any other arguments."""

    def __init__(self, lr: float = 0.05, **rest: Any):
        super().__init__(lr)
        self.rest = rest


class WideLine(Line):
    """A straight line that passes arguments on to its base."""

    def __init__(self, width: int = 3, **kwargs: Any):
        super().__init__(**kwargs)
        self.width = width


class Records(DataModule):
    """Batches of random records; one batch validates."""

    def __init__(self, global_batch_size: int = 2, lr: float = 0.0):
        super().__init__()
        self.global_batch_size, self.lr = global_batch_size, lr

    def train_dataloader(self):
        return DataLoader(self._records(24), batch_size=self.global_batch_size)

    def val_dataloader(self):
        return DataLoader(self._records(2), batch_size=2)

    @staticmethod
    def _records(number: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(number, 3, generator=generator), torch.randn(number, 1, generator=generator))
