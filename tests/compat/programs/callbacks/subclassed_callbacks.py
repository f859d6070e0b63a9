"""Custom callbacks: weight averaging with a state, a LearningRateMonitor, state keys."""

import json

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LambdaCallback, LearningRateMonitor, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


class EMA(Callback):
    """Averages the weights, validates with the average, and keeps it in the checkpoint."""

    def __init__(self, decay=0.9, every=1):
        self.decay, self.every, self.average, self.kept = decay, every, None, None

    @property
    def state_key(self):
        return self._generate_state_key(decay=self.decay)

    def on_fit_start(self, trainer, pl_module):
        if self.average is None:
            self.average = {name: value.detach().clone() for name, value in pl_module.state_dict().items()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0:
            for name, value in pl_module.state_dict().items():
                self.average[name].lerp_(value, 1 - self.decay)

    def on_validation_epoch_start(self, trainer, pl_module):
        self.kept = {name: value.clone() for name, value in pl_module.state_dict().items()}
        pl_module.load_state_dict(self.average)

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.load_state_dict(self.kept)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["ema"] = self.average

    def state_dict(self):
        return {"decay": self.decay}


class Monitor(LearningRateMonitor):
    def on_train_start(self, trainer, pl_module, *args, **kwargs):
        super().on_train_start(trainer, pl_module, *args, **kwargs)
        self.started = True


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 2)
        self.steps = []

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        self.steps.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7), "name": "decay"}]

    def configure_callbacks(self):
        return [ModelCheckpoint("kept", monitor="val_loss", save_top_k=2, filename="{epoch}-{val_loss:.4f}")]


if __name__ == "__main__":
    seed_everything(41)
    x = torch.randn(36, 5)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=9)
    calls = []
    quick = LambdaCallback(
        on_train_epoch_start=lambda trainer, module: calls.append(["epoch", trainer.current_epoch]),
        on_validation_end=lambda trainer, module: calls.append(["validated", trainer.global_step]),
    )
    monitor, ema, timer = Monitor(logging_interval="epoch"), EMA(), Timer(duration="00:01:00:00")
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[ema, monitor, quick, timer],
        logger=CSVLogger("logs", name="", version="v"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, loader, loader)
    keep = trainer.checkpoint_callback
    checkpoint = torch.load(keep.best_model_path, weights_only=False)
    print(
        json.dumps(
            {
                "steps": model.steps,
                "calls": calls,
                "metrics": {name: value.item() for name, value in trainer.callback_metrics.items()},
                "average": {name: value.sum().item() for name, value in checkpoint["ema"].items()},
                "keys": sorted(key for key in checkpoint["callbacks"] if "EMA" in key),
                "kept": sorted(path.rsplit("/", 1)[-1] for path in keep.best_k_models),
                "callbacks": [type(one).__name__ for one in trainer.callbacks],
                "monitored": [monitor.started, monitor.lrs],
                "timer": timer.time_elapsed("train") > 0,
                "early": [type(one).__name__ for one in trainer.early_stopping_callbacks],
            }
        )
    )
