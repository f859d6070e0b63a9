"""The network and its training steps. The optimizer is set in config.yaml."""

from __future__ import annotations

import torch
import torchmetrics
from torch import nn

import lightlib as L


class Classifier(L.Module):
    """A small convolutional network that recognizes the digit in an image.

    Args:
        classes: Number of classes.
        width: Channels of the first layer; the second has twice as many.
        dropout: Share of the features that are left out, at random, in training.
        activation: Layer after each convolution; in a configuration any class of torch.nn, by its path.
    """

    def __init__(
        self, classes: int = 10, width: int = 32, dropout: float = 0.3, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        activation = activation or nn.ReLU()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), activation,
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), activation, nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(2 * width * 16, classes),
        )  # fmt: skip
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=classes)

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
        """Log the loss and the share of right answers."""
        images, labels = batch
        scores = self(images)
        self.accuracy(scores, labels)
        self.log(f"{stage}_loss", nn.functional.cross_entropy(scores, labels))
        self.log(f"{stage}_accuracy", self.accuracy, prog_bar=True)

    def predict_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, _ = batch
        return self(images).argmax(1)
