"""Shared by the programs: a small module, data, a quiet Trainer, and the events to compare."""

from __future__ import annotations

import os

import lightning.pytorch as pl
import torch

EVENTS: list = []


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[0.5, -0.25]]))
            self.layer.bias.fill_(0.125)

    def loss(self, batch):
        return (self.layer(batch).sum() - 1.0) ** 2

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def predict_step(self, batch, batch_idx):
        return self.layer(batch)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.5)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Validated(Net):
    def validation_step(self, batch, batch_idx):
        self.log("val", self.loss(batch), sync_dist=True)


class Tracing(Net):
    """Notes hooks as they run."""

    def on_before_zero_grad(self, optimizer):
        EVENTS.append("module.on_before_zero_grad")

    def on_before_backward(self, loss):
        EVENTS.append(["module.on_before_backward", round(loss.item(), 6)])

    def on_after_backward(self):
        EVENTS.append("module.on_after_backward")

    def on_before_optimizer_step(self, optimizer):
        EVENTS.append("module.on_before_optimizer_step")

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        EVENTS.append("module.configure_gradient_clipping")
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)


class Manual(Tracing):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


def loader(size=2):
    """Return a loader; each process reads other data."""
    data = torch.arange(16.0).reshape(8, 2) / 8 + int(os.environ.get("LOCAL_RANK", "0")) / 16
    return torch.utils.data.DataLoader(data, batch_size=size)


def trainer(**options):
    arguments = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    arguments |= {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "num_sanity_val_steps": 0}
    arguments["use_distributed_sampler"] = False
    return pl.Trainer(**(arguments | options))


def weights(module):
    return [round(value, 7) for parameter in module.parameters() for value in parameter.detach().flatten().tolist()]


def result(run, module, **more):
    metrics = {name: round(float(value), 6) for name, value in sorted(run.callback_metrics.items())}
    return {"weights": weights(module), "metrics": metrics, "events": EVENTS, **more}
