"""Train on small images first and on larger ones later: three calls of `fit`, one history.

Run it:

    python examples/progressive_resizing.py

Epochs, steps, logs and checkpoints keep counting from call to call; only `trainer.max_epochs` is raised.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import Accuracy

import lightlib as L
from lightlib.callbacks import ModelCheckpoint


class Digits(L.DataModule):
    """Handwritten digits in the requested size."""

    def __init__(self, size: int, batch_size: int = 64) -> None:
        super().__init__()
        self.size, self.batch_size = size, batch_size

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        images = F.interpolate(images, self.size, mode="area")
        data = TensorDataset(images, torch.tensor(digits.target))
        self.train_data, self.val_data = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_data, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val_data, batch_size=256)


class Classifier(L.Module):
    """Convolutions and a mean over all places: a network for any size."""

    def __init__(self, width: int = 16, lr: float = 4e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1), nn.BatchNorm2d(4 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
        )  # fmt: skip
        self.accuracy = Accuracy(task="multiclass", num_classes=10)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        images, labels = batch
        self.accuracy(self.net(images), labels)
        self.log("val_accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), self.hparams.lr)


class History(L.Callback):
    """Remembers epoch, step, image size and accuracy."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, float]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        accuracy = trainer.callback_metrics["val_accuracy"].item()
        self.rows.append((trainer.current_epoch, trainer.global_step, trainer.datamodule.size, accuracy))


def main() -> None:
    """Raise max_epochs and train again, for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 6, 8])
    parser.add_argument("--epochs", type=int, default=4, help="epochs for each size")
    args = parser.parse_args()

    L.seed_everything(0)
    history, best = History(), ModelCheckpoint(monitor="val_accuracy", mode="max")
    trainer = L.Trainer(max_epochs=0, num_sanity_val_steps=0, log_every_n_steps=10, callbacks=[history, best])
    model = Classifier()
    for size in args.sizes:
        trainer.max_epochs += args.epochs
        trainer.fit(model, Digits(size))

    print("\nepoch  step  size  accuracy")
    for epoch, step, size, accuracy in history.rows:
        print(f"{epoch:5d} {step:5d} {size:5d} {accuracy:9.4f}")
    print(f"best: {best.best_model_path}")


if __name__ == "__main__":
    main()
