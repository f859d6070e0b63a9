"""pytorch-accelerated's progressive resizing: three calls of `fit`, one history."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import (
    EarlyStopping,
    History,
    LearningRateMonitor,
    MetricPrinter,
    ModelCheckpoint,
    TerminateOnNaN,
    Timer,
)

BATCH = 32
PHASES = [(2, 8, 0.01), (3, 16, 0.01), (6, 24, 0.001)]  # epochs, pixels, learning rate


class Classifier(L.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip
        self.accuracy = MulticlassAccuracy(10, average="micro")
        self.steps, self.lr = 0, 0.0  # of the phase

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr / 25)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def digits(size):
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:1000, None] / 16
    images, labels = F.interpolate(images, size, mode="bilinear"), torch.tensor(data.target)[:1000]
    return TensorDataset(images[:800], labels[:800]), TensorDataset(images[800:], labels[800:])


L.seed_everything(0)
history = History()
best = ModelCheckpoint(monitor="accuracy", mode="max")
callbacks = [
    TerminateOnNaN(), history, MetricPrinter(every_n_batches=100), LearningRateMonitor(), best,
    EarlyStopping("accuracy", mode="max", patience=9), Timer(),
]  # fmt: skip
trainer = L.Trainer(max_epochs=0, callbacks=callbacks, enable_progress_bar=False, log_every_n_steps=5)
module = Classifier()
for epochs, size, lr in PHASES:
    print(f"Training with image size {size}")
    data, val_data = digits(size)
    module.steps, module.lr = epochs * len(data) // BATCH, lr
    trainer.max_epochs += epochs
    trainer.fit(module, datamodule=L.DataModule.from_datasets(data, val_data, batch_size=BATCH))
print(f"{trainer.current_epoch} epochs, {trainer.global_step} steps")
print("accuracies:", " ".join(f"{value:.3f}" for value in history.values("accuracy")))
print(f"best: {best.best_model_score:.3f}")
