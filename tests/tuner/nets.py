"""A small module with a learning rate and a batch size, its data, and a run to compare."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.runs import plain

QUIET = plain.QUIET | {"limit_val_batches": 0}
LIMIT = 20  # samples of a batch that fit into the pretended memory


class Net(plain.Net):
    """Draws random numbers in each step, makes its loader with `batch_size`, and has a schedule."""

    def __init__(self, dropout=0.0, batch_size=4):
        super().__init__(dropout=dropout)
        self.lr, self.batch_size = 0.1, batch_size
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(float(batch[0].sum()))
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Loads(Net):
    """Makes its loader with `batch_size`."""

    def train_dataloader(self):
        return DataLoader(TensorDataset(*plain.samples(40)), batch_size=self.batch_size, shuffle=True)


class Small(Loads):
    """Runs out of memory with more than `LIMIT` samples."""

    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    def training_step(self, batch, batch_idx):
        if len(batch[0]) > LIMIT:
            raise self.error
        return super().training_step(batch, batch_idx)


def outcome(trainer, module):
    """The results of a run: weights, optimizer, schedules, numbers drawn next, batches seen, position, and metrics."""
    return {
        "weights": {name: value.clone() for name, value in module.state_dict().items()},
        "optimizer": trainer.optimizers[0].state_dict(),
        "schedules": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "random": torch.rand(4),
        "seen": list(module.seen),
        "progress": trainer.progress.state_dict(),
        "metrics": dict(trainer.callback_metrics),
    }
