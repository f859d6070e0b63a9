"""Handwritten digits: data, model, validation, the best checkpoint and a test, in one file.

Run it, from anywhere:

    python examples/digits.py
    python examples/digits.py --precision bf16-mixed --max_epochs 5
"""

from __future__ import annotations

import argparse

import torch
import torchmetrics
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import lightlib as L
from lightlib.callbacks import ModelCheckpoint


class Digits(L.DataModule):
    """1797 real digits of 8x8 pixels, that come with scikit-learn."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        data = TensorDataset(images, torch.tensor(digits.target))
        parts = random_split(data, [0.7, 0.1, 0.2], torch.Generator().manual_seed(0))
        self.train_data, self.val_data, self.test_data = parts

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_data, self.hparams.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val_data, batch_size=256)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.test_data, batch_size=256)


class Classifier(L.Module):
    """A small convolutional network."""

    def __init__(self, width: int = 32, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.3), nn.Linear(2 * width * 16, 10),
        )  # fmt: skip
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: list[torch.Tensor]) -> None:
        self.evaluate(batch, "test")

    def evaluate(self, batch: list[torch.Tensor], stage: str) -> None:
        images, labels = batch
        scores = self(images)
        self.accuracy(scores, labels)
        self.log(f"{stage}_loss", nn.functional.cross_entropy(scores, labels))
        self.log(f"{stage}_accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": lambda optimizer, total_steps: torch.optim.lr_scheduler.OneCycleLR(
                    optimizer, self.hparams.lr, total_steps
                ),
                "interval": "step",
            },
        }


def main() -> None:
    """Train, and test the best checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_epochs", type=int, default=10)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--precision", default="32-true", help="e.g. bf16-mixed, 16-mixed, 64-true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    L.seed_everything(args.seed)
    best = ModelCheckpoint(monitor="val_accuracy", mode="max", filename="{epoch}-{val_accuracy:.3f}")
    trainer = L.Trainer(
        accelerator=args.accelerator,
        precision=args.precision,
        max_epochs=args.max_epochs,
        log_every_n_steps=10,
        callbacks=best,
    )
    data = Digits()
    trainer.fit(Classifier(), data)
    metrics = trainer.test(ckpt_path="best", datamodule=data)[0]

    print(f"test accuracy    {metrics['test_accuracy']:.4f}")
    print(f"best checkpoint  {best.best_model_path}")
    print(f"logs             {trainer.log_dir}    tensorboard --logdir {trainer.log_dir}")


if __name__ == "__main__":
    main()
