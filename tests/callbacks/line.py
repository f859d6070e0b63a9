"""A module of one weight that logs given values after its validations, and a Trainer of its runs."""

from __future__ import annotations

import math
import os

import torch
from torch.utils.data import DataLoader

from lightlib.callbacks import (
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer


class Line(Module):
    """One weight; validation reports the values of the list, then the number of the validation."""

    not_in_checkpoint = ("losses", "validations")

    def __init__(self, losses=(), bad_batch=None):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.losses = list(losses)
        self.validations = 0
        self.bad_batch = bad_batch

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        if self.global_step == self.bad_batch:
            loss = loss * math.nan
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.layer(batch)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            value = self.losses[self.validations] if self.validations < len(self.losses) else float(self.validations)
            self.log("val_loss", torch.tensor(float(value)))
            self.validations += 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return DataLoader(torch.ones(8, 2), batch_size=2)

    def val_dataloader(self):
        return DataLoader(torch.ones(2, 2), batch_size=2)


def line_trainer(tmp_path, *callbacks, **arguments):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    if not any(isinstance(callback, (ModelCheckpoint, OnExceptionCheckpoint)) for callback in callbacks):
        quiet["enable_checkpointing"] = False
    return Trainer(
        **{"default_root_dir": tmp_path, "max_epochs": 3, **quiet, "callbacks": list(callbacks), **arguments}
    )


def names(callback):
    return sorted(os.listdir(callback.dirpath))
