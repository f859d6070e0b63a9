"""Schedules that ask the Trainer for its length, and a plateau schedule by a metric."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer = kind, torch.nn.Linear(4, 1)
        self.rates, self.asked, self.steps = [], None, []

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.steps.append(loss.item())
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.rates.append(self.optimizers().param_groups[0]["lr"])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.layer(batch[0]) - batch[1]).square().mean())

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step() if metric is None else scheduler.step(metric)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        if self.kind == "one cycle":
            self.asked = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=self.asked)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        if self.kind == "noam":
            self.trainer.fit_loop.setup_data()
            self.asked = self.trainer.num_training_batches
            factor = lambda step: min((step + 1) ** -0.5, (step + 1) * self.asked**-1.5)  # noqa: E731
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 2}}
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3, threshold=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss", "interval": "epoch", "strict": True},
        }


def fit(kind):
    seed_everything(19)
    x = torch.randn(44, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    model, monitor = Model(kind), LearningRateMonitor(logging_interval="step", log_momentum=True)
    trainer = Trainer(
        max_epochs=3,
        accumulate_grad_batches=2 if kind == "one cycle" else 1,
        callbacks=[monitor],
        logger=CSVLogger("logs", kind.replace(" ", "_"), version="a"),
        log_every_n_steps=1,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, loader)
    monitored = {name: values for name, values in monitor.lrs.items() if "momentum" not in name}
    return {
        "asked": model.asked,
        "rates": model.rates,
        "steps": model.steps,
        "monitored": monitored,
        "metrics": sorted(name for name in trainer.callback_metrics),
    }


if __name__ == "__main__":
    print(json.dumps({kind: fit(kind) for kind in ("one cycle", "noam", "plateau")}))
