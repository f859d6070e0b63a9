"""MMEngine's first example, a classifier in its five steps, on scikit-learn's digits."""

from functools import partial

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import Callback, MetricPrinter, ModelCheckpoint


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip

    def forward(self, imgs, labels, mode):
        x = self.net(imgs)
        if mode == "loss":
            return {"loss": F.cross_entropy(x, labels)}
        return x, labels


class Accuracy(Callback):
    def __init__(self):
        self.metric = MulticlassAccuracy(10, average="micro")

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.metric.update(*outputs)

    def on_validation_epoch_end(self, trainer, pl_module):
        self.log("accuracy", 100 * self.metric.compute())
        self.metric.reset()


digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target))
train_data, val_data = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
L.seed_everything(0)
trainer = L.Trainer(
    default_root_dir="work_dir",
    max_epochs=5,
    check_val_every_n_epoch=1,
    log_every_n_steps=10,
    callbacks=[Accuracy(), MetricPrinter(every_n_batches=10), ModelCheckpoint(save_top_k=-1)],
    enable_progress_bar=False,
)
trainer.fit(
    L.Module.from_model(ConvNet(), optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
    DataLoader(train_data, batch_size=32, shuffle=True),
    DataLoader(val_data, batch_size=32),
)
print(f"accuracy: {trainer.callback_metrics['accuracy']:.4f}")
