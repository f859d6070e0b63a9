"""A program that is killed and started again by the same command; test_same_command.py runs it."""

from __future__ import annotations

import argparse
import os
import signal

import torch

from lightlib.callbacks import Callback, ModelCheckpoint
from lightlib.core.trainer import Trainer
from lightlib.loggers import CSVLogger, JSONLLogger, TensorBoardLogger
from tests.runs.plain import QUIET, Net, loader


class Logs(Net):
    """Values per step and per epoch, and a column that only the second epoch brings."""

    def __init__(self):
        super().__init__(dropout=0.2)
        self.save_hyperparameters({"lr": 0.1, "token": "secret"})

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        if self.current_epoch:
            self.log("late", loss * 2)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", super().training_step(batch, batch_idx))


class Kill(Callback):
    """Ends the process as a power failure would, after so many batches of this process."""

    def __init__(self, after):
        self.left = after

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    """Start or resume, in the current folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", type=int, default=0)
    parser.add_argument("--version")
    given = parser.parse_args()
    torch.manual_seed(5)
    callbacks = [ModelCheckpoint(every_n_train_steps=3, save_top_k=2, monitor="loss", save_last=True)]
    callbacks += [Kill(given.kill)] if given.kill else []
    loggers = [CSVLogger(".", version=given.version), TensorBoardLogger(".", name="board", version=given.version)]
    loggers.append(JSONLLogger(".", name="lines", version=given.version))
    settings = {**QUIET, "enable_checkpointing": True, "logger": loggers, "callbacks": callbacks}
    trainer = Trainer(**settings, max_epochs=3, log_every_n_steps=1)
    trainer.fit(Logs(), loader(20, shuffle=True), loader(8), ckpt_path="auto")


if __name__ == "__main__":
    main()
