"""A residual network for images: model, metrics, data and run.

Run it:

    python examples/image_classifier.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import EarlyStopping

MAX_EPOCHS, BATCH_SIZE, CLASSES = 12, 64, 10


class Residual(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )  # fmt: skip
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.path(x) + self.shortcut(x)


class ImageClassifier(L.Module):
    """Any number of channels, any size of image."""

    def __init__(self, channels: int, classes: int, width: int = 16, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), Residual(width, width), Residual(width, 2 * width, stride=2),
            Residual(2 * width, 4 * width, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(4 * width, classes),
        )  # fmt: skip
        self.accuracy = MulticlassAccuracy(classes, average="micro")

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        images, labels = batch
        self.accuracy(self.net(images), labels)
        self.log("accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.05)


def main() -> None:
    """Train until the accuracy stops rising."""
    L.seed_everything(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    train, val = random_split(TensorDataset(images, torch.tensor(digits.target)), [0.8, 0.2])
    trainer = L.Trainer(max_epochs=MAX_EPOCHS, callbacks=EarlyStopping("accuracy", mode="max", patience=5))
    trainer.fit(
        ImageClassifier(channels=1, classes=CLASSES),
        DataLoader(train, BATCH_SIZE, shuffle=True),
        DataLoader(val, BATCH_SIZE),
    )
    print(f"accuracy {trainer.callback_metrics['accuracy']:.4f} after {trainer.current_epoch} epochs")


if __name__ == "__main__":
    main()
