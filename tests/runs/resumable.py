"""A run with all that a resume can get wrong: dropout, shuffling, momenta, schedules, sums."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

from lightlib.callbacks import ModelCheckpoint
from lightlib.callbacks.callback import Callback
from lightlib.core.trainer import Trainer
from tests.runs.plain import QUIET, Net, Rows, samples


class Noisy(Dataset):
    """Samples with noise from the global generators."""

    def __init__(self, n):
        self.x, self.y = samples(n)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.randn(6) + random.random() + float(numpy.random.rand())
        return self.x[index] + 0.1 * noise, self.y[index]


class Everything(Net):
    """A classifier with a run that depends on every kind of state."""

    def __init__(self):
        layers = nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 3)
        super().__init__(net=nn.Sequential(*layers))
        self.accuracy = MulticlassAccuracy(3)
        self.val_accuracy = MulticlassAccuracy(3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True, batch_size=len(y))
        self.log("largest", logits.max(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        if batch_idx % 2:
            self.log("sometimes", loss * 2, on_step=False, on_epoch=True, batch_size=len(y))
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x + 0.01 * torch.randn(6))
        self.val_accuracy(logits, y)
        self.log("val_accuracy", self.val_accuracy)
        self.log("val_loss", cross_entropy(logits, y))

    def on_train_epoch_end(self):
        self.log("end", float(self.current_epoch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        by_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return [optimizer], [
            {"scheduler": by_step, "interval": "step"},
            {"scheduler": plateau, "monitor": "loss_epoch"},
        ]


def loaders(workers=0, n=26, val=None, **arguments):
    """A shuffled training loader of `n` samples and a validation loader, with arguments of their own."""
    settings = {"batch_size": 4, "shuffle": True, "num_workers": workers, **arguments}
    held_out = {"batch_size": 4, **(val or {})}
    return (
        DataLoader(Noisy(n), **settings),
        DataLoader(Noisy(9), **held_out),
    )


class SavesEverywhere(Callback):
    """Saves after every optimizer step, and remembers how much had been logged when the file was written."""

    not_in_checkpoint = ("rows",)

    def __init__(self, folder):
        self.folder = Path(folder)
        self.rows = {}

    def on_accumulation_end(self, trainer, pl_module):
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")

    def on_checkpoint_written(self, trainer, pl_module, path):
        self.rows[int(Path(path).stem)] = len(trainer.logger.rows)


def trainer_for(*callbacks, **arguments):
    more = {"max_epochs": 2, "log_every_n_steps": 1, "val_check_interval": 3, "num_sanity_val_steps": 1}
    return Trainer(**{**QUIET, **more, "callbacks": list(callbacks), "logger": Rows(), **arguments})


def run(module, trainer, data, ckpt_path=None, seed=11):
    """Seed the global generator and fit."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    trainer.fit(module, *data, ckpt_path=ckpt_path)
    return module, trainer


def fresh(seed=1):
    """A module with the weights of this seed."""
    torch.manual_seed(seed)
    return Everything()


class WaitsForSignal(Callback):
    """In the second epoch, prints a line and waits until the signal has been sent."""

    def __init__(self, folder):
        self.sent = Path(folder) / "sent"

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.progress.batch == 8:
            sys.stdout.write("batch 8\n")
            sys.stdout.flush()
            while not self.sent.exists():
                time.sleep(0.01)


if __name__ == "__main__":  # started by test_resume.py
    torch.set_num_threads(1)
    callbacks = [ModelCheckpoint(sys.argv[1], save_top_k=0), WaitsForSignal(sys.argv[1])]
    trainer = trainer_for(*callbacks, accumulate_grad_batches=2, enable_checkpointing=True)
    run(fresh(), trainer, loaders())


class SaveAtStep(Callback):
    """Saves a checkpoint at one step."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
