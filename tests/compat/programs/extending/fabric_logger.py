"""A logger for Fabric, and loggers that derive from the bases of both the Trainer and Fabric."""

import csv
import json
from pathlib import Path

import lightning as L
import torch
from lightning.fabric.loggers import CSVLogger as FabricCSVLogger
from lightning.fabric.loggers import Logger as FabricLogger
from lightning.fabric.loggers import TensorBoardLogger as FabricTensorBoardLogger
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger


class Board:
    def __init__(self):
        self.rows = []


class ForFabric(FabricLogger):
    def __init__(self, prefix="", board=None):
        super().__init__()
        self._prefix, self._board = prefix, board

    @property
    def name(self):
        return "board"

    @property
    def version(self):
        return "one"

    @property
    @rank_zero_experiment
    def experiment(self):
        if self._board is None:
            self._board = Board()
        return self._board

    def log_metrics(self, metrics, step=None):
        self.experiment.rows += [[self._prefix + name, float(metrics[name])] for name in sorted(metrics)]

    def log_hyperparams(self, params):
        self.experiment.rows.append(dict(params))

    def finalize(self, status):
        self.experiment.rows.append(status)


class ForTrainer(Logger, ForFabric):
    def __init__(self, prefix="run/"):
        super().__init__(prefix=prefix)
        self.saved = 0

    def log_metrics(self, metrics, step=None):
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)

    def after_save_checkpoint(self, checkpoint_callback):
        self.saved += checkpoint_callback.save_top_k


class Table(Logger, FabricCSVLogger):
    def log_hyperparams(self, params):
        self.given = dict(params)


class Curves(Logger, FabricTensorBoardLogger):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.names = []

    def log_metrics(self, metrics, step=None):
        self.names.append(sorted(name for name in metrics if name != "epoch"))
        super().log_metrics(metrics, step)


class Model(BoringModel):
    def __init__(self, width=3):
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        self.log("train_loss", loss, on_epoch=True)
        return loss


def by_fabric():
    alone, both = ForFabric(), ForTrainer()
    fabric = L.Fabric(accelerator="cpu", devices=1, loggers=[alone, both])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        fabric.backward(loss)
        optimizer.step()
        fabric.log("loss", loss, step=step)
    fabric.logger.finalize("success")
    return {"alone": alone.experiment.rows, "both": both.experiment.rows, "first": fabric.logger is alone}


def by_trainer(*loggers):
    trainer = L.Trainer(
        max_epochs=2,
        limit_train_batches=4,
        limit_val_batches=0,
        log_every_n_steps=2,
        accelerator="cpu",
        logger=loggers,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model())
    return trainer


def of_files():
    table, curves = Table("logs", name="table"), Curves("logs", name="curves", version="first")
    trainer = by_trainer(table, curves)
    rows = list(csv.DictReader(Path(table.log_dir, "metrics.csv").read_text().splitlines()))
    return {
        "directories": [[logger.save_dir, logger.root_dir, logger.log_dir] for logger in (table, curves)],
        "has events": any(path.name.startswith("events") for path in Path(curves.log_dir).iterdir()),
        "hyperparameters": table.given,
        "losses": [float(row["train_loss_epoch"]) for row in rows if row["train_loss_epoch"]],
        "names": curves.names,
        "first": trainer.logger is table,
    }


def of_a_board():
    logger = ForTrainer()
    by_trainer(logger)
    return {"rows": logger.experiment.rows, "saved": logger.saved, "directories": [logger.save_dir, logger.root_dir]}


if __name__ == "__main__":
    L.seed_everything(7)
    kinds = {"ForFabric": ForFabric, "ForTrainer": ForTrainer, "CSVLogger": CSVLogger}
    kinds |= {"MLFlowLogger": MLFlowLogger, "TensorBoardLogger": TensorBoardLogger, "WandbLogger": WandbLogger}
    kinds |= {"FabricCSVLogger": FabricCSVLogger, "FabricTensorBoardLogger": FabricTensorBoardLogger}
    bases = (Logger, FabricLogger, FabricCSVLogger, FabricTensorBoardLogger, CSVLogger)
    classes = {name: [issubclass(kind, base) for base in bases] for name, kind in kinds.items()}
    figures = {"classes": classes, "fabric": by_fabric(), "board": of_a_board(), "files": of_files()}
    print(json.dumps(figures))
