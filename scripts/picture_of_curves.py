"""Draws docs/images/plot.png: the output of `lightlib plot` for two short runs on handwritten digits.

python scripts/picture_of_curves.py     train both, a few seconds each, and draw
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import LearningRateMonitor
from lightlib.command.plot import plot
from lightlib.loggers import CSVLogger

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "plot.png"
RUNS = {"adam-0.01": 0.01, "adam-0.001": 0.001}  # by name: the learning rate
EPOCHS = 12


class Classifier(L.Module):
    """A small network."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Log the loss per step and per epoch."""
        x, y = batch
        scores = self.net(x)
        loss = nn.functional.cross_entropy(scores, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("train_accuracy", (scores.argmax(1) == y).float().mean(), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Log loss and accuracy per epoch."""
        x, y = batch
        scores = self.net(x)
        self.log("val_loss", nn.functional.cross_entropy(scores, y))
        self.log("val_accuracy", (scores.argmax(1) == y).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        """Return Adam with a learning rate that falls to zero, step by step."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> int:
    """Train, draw, and put the picture in its place."""
    from sklearn.datasets import load_digits  # optional: scikit-learn

    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    training, validation = torch.utils.data.random_split(data, [1437, 360], torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        for name, lr in RUNS.items():
            L.seed_everything(1)
            trainer = L.Trainer(
                max_epochs=EPOCHS,
                accelerator="cpu",
                logger=CSVLogger(folder, name="", version=name),
                callbacks=[LearningRateMonitor("step")],
                log_every_n_steps=1,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(
                Classifier(lr),
                DataLoader(training, batch_size=32, shuffle=True),
                DataLoader(validation, batch_size=360),
            )
        parser = argparse.ArgumentParser()
        plot.add_arguments(parser)
        code = plot.run(
            parser.parse_args([folder, "--output", folder, "--smooth", "0.9", "--x", "epoch", "--format", "png"])
        )
        shutil.copy(Path(folder) / "curves.png", PICTURE)
    return code


if __name__ == "__main__":
    sys.exit(main())
