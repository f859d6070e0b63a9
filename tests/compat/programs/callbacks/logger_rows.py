"""The rows that loggers get, with their steps, and the calls of `save` after them."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader, TensorDataset


class Calls(Logger):
    name, version, save_dir = "calls", "0", "out"

    def __init__(self):
        super().__init__()
        self.calls = []

    def log_metrics(self, metrics, step=None):
        shown = {name: round(float(value), 5) for name, value in metrics.items() if "/" not in name and "." not in name}
        self.calls.append([step, sorted(shown.items())])

    def log_hyperparams(self, *args, **kwargs):
        pass

    def save(self):
        self.calls.append("save")


class Model(LightningModule):
    def __init__(self, own_axis=False, manual=False):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.own_axis, self.automatic_optimization = own_axis, not manual
        self.counted = []

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        if self.own_axis:
            self.log("step", float(self.trainer.current_epoch))
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_train_batch_end(self, *args):
        self.counted.append(self.trainer.fit_loop.epoch_loop._batches_that_stepped)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val", self.layer(batch[0]).mean(), on_step=True, on_epoch=True)

    test_step = validation_step

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


def run(model=(), loaders=1, callbacks=(), **arguments):
    seed_everything(3)
    data = TensorDataset(torch.randn(16, 3))
    logger, model = Calls(), Model(*model)
    val = [DataLoader(data, batch_size=8) for _ in range(loaders)] if loaders else None
    trainer = Trainer(
        accelerator="cpu",
        logger=logger,
        callbacks=list(callbacks),
        **{"max_epochs": 2, "log_every_n_steps": 3, **arguments},
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=4), val)
    if loaders:
        trainer.validate(model, val, verbose=False)
        trainer.test(model, val, verbose=False)
    return {"calls": logger.calls, "counted": model.counted}


if __name__ == "__main__":
    checkpoint = ModelCheckpoint("files", filename="{epoch}-{step}", save_top_k=-1, every_n_train_steps=3)
    results = {
        "plain": run(loaders=0),
        "validated": run(),
        "two loaders": run(loaders=2),
        "accumulated": run(accumulate_grad_batches=2, log_every_n_steps=1, val_check_interval=1),
        "within the epoch": run(val_check_interval=2),
        "own axis": run((True,)),
        "manual": run((False, True)),
        "rates": run(callbacks=[LearningRateMonitor("step")], loaders=0, log_every_n_steps=2),
        "max steps": run(max_epochs=-1, max_steps=6),
        "fast": run(fast_dev_run=2),
        "checkpoints": run(callbacks=[checkpoint]) and sorted(checkpoint.best_k_models),
    }
    results["checkpoints"] = [path.rpartition("/")[2] for path in results["checkpoints"]]
    print(json.dumps(results))
