"""The module of colossalai.yaml, and a callback that notes ColossalAI's twelve time points."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import Callback, end_of_epoch


class Engine(L.Module):
    def __init__(self):
        super().__init__()
        self.net, self.criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, batch_idx):
        output = self.net(batch[0])
        loss = self.criterion(output, batch[1])
        self.log("loss", loss, prog_bar=True)
        return {"loss": loss, "output": output, "label": batch[1]}

    def validation_step(self, batch, batch_idx):
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)]

    def train_dataloader(self):
        x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x, x.argmax(1) % 3), batch_size=4)

    val_dataloader = train_dataloader


class Points(Callback):
    """Appends each of the twelve points of ColossalAI to the file `points.txt`."""

    def note(self, name):
        with open("points.txt", "a", encoding="utf-8") as file:
            file.write(name + "\n")

    def on_train_start(self, trainer, pl_module):
        self.note("before_train")

    def on_train_epoch_start(self, trainer, pl_module):
        self.note("before_train_epoch")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.note("before_train_iter")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        assert {"loss", "output", "label"} <= outputs.keys()
        self.note("after_train_iter")
        if end_of_epoch(trainer):
            self.note("after_train_epoch")

    def on_validation_start(self, trainer, pl_module):
        self.note("before_test")

    def on_validation_epoch_start(self, trainer, pl_module):
        self.note("before_test_epoch")

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        self.note("before_test_iter")

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        self.note("after_test_iter")

    def on_validation_epoch_end(self, trainer, pl_module):
        self.note("after_test_epoch")

    def on_validation_end(self, trainer, pl_module):
        self.note("after_test")

    def on_train_end(self, trainer, pl_module):
        self.note("after_train")
