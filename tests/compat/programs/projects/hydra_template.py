"""Hydra template: everything is built from class paths, trained, and tested with the best file."""

import importlib
import itertools
import json
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import Accuracy

CONFIG = {
    "data": {"_target_": "__main__.Digits", "batch_size": 16},
    "model": {
        "_target_": "__main__.Classifier",
        "net": {"_target_": "__main__.dense", "sizes": [12, 24, 3]},
        "optimizer": {"_target_": "torch.optim.Adam", "_partial_": True, "lr": 0.01},
        "scheduler": {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau", "_partial_": True, "patience": 1},
    },
    "callbacks": {
        "model_checkpoint": {
            "_target_": "lightning.pytorch.callbacks.ModelCheckpoint",
            "dirpath": "checkpoints",
            "filename": "epoch_{epoch:03d}",
            "monitor": "val/acc",
            "mode": "max",
            "save_last": True,
            "auto_insert_metric_name": False,
        },
        "early_stopping": {
            "_target_": "lightning.pytorch.callbacks.early_stopping.EarlyStopping",
            "monitor": "val/acc",
            "patience": 4,
            "mode": "max",
        },
        "model_summary": {"_target_": "lightning.pytorch.callbacks.RichModelSummary", "max_depth": -1},
    },
    "logger": {"csv": {"_target_": "lightning.pytorch.loggers.csv_logs.CSVLogger", "save_dir": ".", "name": "csv/"}},
    "trainer": {
        "_target_": "lightning.pytorch.trainer.Trainer",
        "max_epochs": 4,
        "accelerator": "cpu",
        "log_every_n_steps": 2,
        "enable_progress_bar": False,
        "deterministic": True,
    },
}


def instantiate(config, **more):
    """Build the object that `_target_` names; nested configs first."""
    built = {
        key: instantiate(value) if isinstance(value, dict) and "_target_" in value else value
        for key, value in config.items()
        if not key.startswith("_")
    }
    module, _, name = config["_target_"].rpartition(".")
    target = getattr(importlib.import_module(module), name)
    if config.get("_partial_"):
        return lambda *args, **kwargs: target(*args, **built, **kwargs)
    return target(**built, **more)


def dense(sizes):
    pairs = itertools.pairwise(sizes)
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU())]
    return nn.Sequential(*layers[:-2])


class Digits(L.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.parts = None

    def setup(self, stage=None):
        if self.parts is None:
            x = torch.randn(160, 12, generator=torch.Generator().manual_seed(1))
            data = TensorDataset(x, x[:, :3].argmax(1))
            self.parts = random_split(data, [112, 24, 24], generator=torch.Generator().manual_seed(42))

    def train_dataloader(self):
        return DataLoader(self.parts[0], self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], self.hparams.batch_size)

    def test_dataloader(self):
        return DataLoader(self.parts[2], self.hparams.batch_size)


class Classifier(L.LightningModule):
    def __init__(self, net, optimizer, scheduler):
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=["net", "optimizer", "scheduler"])
        self.net, self.optimizer, self.scheduler = net, optimizer, scheduler
        self.criterion = nn.CrossEntropyLoss()
        self.train_acc, self.val_acc, self.test_acc = (Accuracy(task="multiclass", num_classes=3) for _ in range(3))
        self.train_loss, self.val_loss, self.test_loss = MeanMetric(), MeanMetric(), MeanMetric()
        self.val_acc_best = MaxMetric()
        self.steps = []

    def on_train_start(self):
        self.val_loss.reset()
        self.val_acc.reset()
        self.val_acc_best.reset()

    def model_step(self, batch):
        x, y = batch
        logits = self.net(x)
        return self.criterion(logits, y), logits.argmax(1), y

    def training_step(self, batch, batch_idx):
        loss, predicted, y = self.model_step(batch)
        self.train_loss(loss)
        self.train_acc(predicted, y)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("train/acc", self.train_acc, on_step=False, on_epoch=True, prog_bar=True)
        self.steps.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        loss, predicted, y = self.model_step(batch)
        self.val_loss(loss)
        self.val_acc(predicted, y)
        self.log("val/loss", self.val_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True, prog_bar=True)

    def on_validation_epoch_end(self):
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True, prog_bar=True)

    def test_step(self, batch, batch_idx):
        loss, predicted, y = self.model_step(batch)
        self.test_loss(loss)
        self.test_acc(predicted, y)
        self.log("test/loss", self.test_loss, on_step=False, on_epoch=True)
        self.log("test/acc", self.test_acc, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        optimizer = self.optimizer(params=self.trainer.model.parameters())
        scheduler = self.scheduler(optimizer=optimizer)
        config = {"scheduler": scheduler, "monitor": "val/loss", "interval": "epoch", "frequency": 1}
        return {"optimizer": optimizer, "lr_scheduler": config}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)  # on all processors the same figures
    L.seed_everything(12345, workers=True)
    datamodule, model = instantiate(CONFIG["data"]), instantiate(CONFIG["model"])
    callbacks = [instantiate(config) for config in CONFIG["callbacks"].values()]
    loggers = [instantiate(config) for config in CONFIG["logger"].values()]
    trainer = instantiate(CONFIG["trainer"], callbacks=callbacks, logger=loggers)
    for logger in trainer.loggers:
        logger.log_hyperparams({"model/params/total": sum(p.numel() for p in model.parameters())})
    trainer.fit(model=model, datamodule=datamodule)
    fitted = {name: value.item() for name, value in trainer.callback_metrics.items()}
    best = trainer.checkpoint_callback.best_model_path
    trainer.test(model=model, datamodule=datamodule, ckpt_path=best, verbose=False)
    tested = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(
        json.dumps(
            {
                "steps": model.steps,
                "fitted": fitted,
                "tested": tested,
                "best": Path(best).name,
                "files": sorted(path.relative_to(".").as_posix() for path in Path().rglob("*.*") if path.is_file()),
                "metrics.csv": sorted(next(Path("csv").rglob("metrics.csv")).read_text().splitlines()[0].split(",")),
            }
        )
    )
