"""Modules that log, and runs of them with a logger that keeps everything."""

from __future__ import annotations

import torch

from lightlib.core.module.module import Module
from tests.runs.plain import Rows, quiet_trainer


class Base(Module):
    """One weight; batches are plain numbers that are logged by subclasses."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return self.weight.sum()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def predict_step(self, batch, batch_idx):
        pass

    def train_dataloader(self):
        return [torch.tensor([1.0]), torch.tensor([3.0])]

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.0)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Several(Base):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("v", batch.mean(), on_step=True, on_epoch=True)
        self.log(f"own_{dataloader_idx}", batch.mean(), add_dataloader_idx=False)

    def on_validation_epoch_end(self):
        self.log("all", 1.0)

    def val_dataloader(self):
        return {"a": [torch.tensor([1.0, 2.0]), torch.tensor([6.0])], "b": [torch.tensor([10.0])]}


def logging_in(hook, **arguments):
    """A module that logs 1.0, 2.0, … as "v" whenever `hook` is called."""

    def logs(self, *args, **kwargs):
        if not self.trainer.sanity_checking:
            self.count = getattr(self, "count", 0) + 1
            self.log("v", float(self.count), **arguments)
        return getattr(super(kind, self), hook)(*args, **kwargs)

    kind = type("Logs", (Base,), {hook: logs})
    return kind()


def run(module, verb="fit", **arguments):
    """Return the rows that the logger got, and the trainer."""
    logger = Rows()
    trainer = quiet_trainer(**{"logger": logger, "log_every_n_steps": 1, "gradient_clip_val": 1.0, **arguments})
    getattr(trainer, verb)(module)
    return logger.rows, trainer


def verb_of(hook):
    """Return the verb of the Trainer that calls `hook`."""
    return next((verb for verb in ("test", "predict") if verb in hook), "fit")


def logged(rows, prefix="v"):
    """The values in the rows, by name, in their order."""
    return [(step, name, value) for step, row in rows for name, value in row.items() if name.startswith(prefix)]
