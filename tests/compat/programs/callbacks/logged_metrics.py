"""self.log with torchmetrics: steps and epochs, the loggers' files, and the three dicts."""

import csv
import json
from pathlib import Path

import lightning.pytorch as pl
import torch
import torchmetrics
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self, classes=3):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(6, classes)
        metrics = {
            "acc": torchmetrics.Accuracy(task="multiclass", num_classes=classes),
            "f1": torchmetrics.F1Score(task="multiclass", num_classes=classes, average="macro"),
        }
        self.train_metrics = torchmetrics.MetricCollection(metrics, prefix="train/")
        self.val_metrics = self.train_metrics.clone(prefix="val/")
        self.confusion = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=classes)
        self.dicts = []

    def training_step(self, batch, batch_idx):
        logits = self.layer(batch[0])
        loss = torch.nn.functional.cross_entropy(logits, batch[1])
        self.log_dict(self.train_metrics(logits, batch[1]), on_step=True, on_epoch=False)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("total", loss, on_step=False, on_epoch=True, reduce_fx=torch.sum, logger=False)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self.layer(batch[0])
        self.val_metrics.update(logits, batch[1])
        self.confusion.update(logits, batch[1])
        self.log_dict(self.val_metrics, on_epoch=True)
        self.log("val/loss", torch.nn.functional.cross_entropy(logits, batch[1]), on_step=True, on_epoch=True)

    def on_validation_epoch_end(self):
        matrix = self.confusion.compute()
        self.confusion.reset()
        if not self.trainer.sanity_checking:
            self.log("val/diagonal", matrix.diag().sum().float())
            self.logger.log_metrics({"by hand": float(self.current_epoch)}, step=self.global_step)

    def on_train_epoch_end(self):
        names = ("callback_metrics", "logged_metrics", "progress_bar_metrics")
        found = [getattr(self.trainer, name) for name in names]
        self.dicts.append([{key: float(value) for key, value in sorted(one.items())} for one in found])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


if __name__ == "__main__":
    pl.seed_everything(47)
    x = torch.randn(70, 6)
    data = TensorDataset(x, x[:, :3].argmax(1))
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        log_every_n_steps=3,
        logger=[CSVLogger("logs", name="a", version=0), CSVLogger("logs", name="b", prefix="pre", version="x")],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, DataLoader(data, 16, shuffle=True), DataLoader(data, 32))
    tested = trainer.validate(model, DataLoader(data, 32), verbose=False)
    tables = {}
    for path in sorted(Path("logs").rglob("metrics.csv")):
        with path.open() as file:
            rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
        tables[path.parent.as_posix()] = rows
    print(
        json.dumps(
            {
                "dicts": model.dicts,
                "tables": tables,
                "validated": tested,
                "hparams": Path("logs/a/version_0/hparams.yaml").read_text(),
                "log dir": trainer.log_dir,
            }
        )
    )
