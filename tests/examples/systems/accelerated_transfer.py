"""pytorch-accelerated's transfer learning, on digits: a new head on a trained backbone."""

from functools import partial

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import Callback, MetricPrinter, TerminateOnNaN

BATCH = 4


class Accuracy(Callback):
    """Updates at each validation batch, and computes and resets after the epoch."""

    def __init__(self, num_classes):
        self.metric = MulticlassAccuracy(num_classes, average="micro")

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        images, labels = batch
        self.metric.update(pl_module.model(images), labels)

    def on_validation_epoch_end(self, trainer, pl_module):
        self.log("accuracy", self.metric.compute())
        self.metric.reset()


def digits(kinds):
    data = load_digits()
    chosen = torch.isin(torch.tensor(data.target), torch.tensor(kinds))
    labels = torch.tensor(data.target)[chosen] - kinds[0]
    images = torch.tensor(data.images, dtype=torch.float32)[chosen, None] / 16
    cut = int(0.8 * len(images))
    return TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:])


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(512, 8),
    )  # fmt: skip


def train(model, kinds, epochs, **settings):
    data, val_data = digits(kinds)
    steps = len(data) // BATCH
    module = L.Module.from_model(
        model,
        F.cross_entropy,
        partial(torch.optim.SGD, momentum=0.9, **settings),
        partial(torch.optim.lr_scheduler.StepLR, step_size=7 * steps, gamma=0.1),
        interval="step",
    )
    callbacks = [TerminateOnNaN(), Accuracy(model[-1].out_features), MetricPrinter(every_n_batches=50)]
    trainer = L.Trainer(max_epochs=epochs, callbacks=callbacks, enable_progress_bar=False, logger=False)
    trainer.fit(module, datamodule=L.DataModule.from_datasets(data, val_data, batch_size=BATCH))
    return trainer.callback_metrics["accuracy"]


L.seed_everything(0)
model = network()
print(f"digits 0 to 7: accuracy {train(model, list(range(8)), 2, lr=0.01):.3f}")
for parameter in model[:-1].parameters():
    parameter.requires_grad = False
model[-1] = nn.Linear(model[-1].in_features, 2)
print(f"digits 8 and 9, a new head: accuracy {train(model, [8, 9], 1, lr=0.001):.3f}")
