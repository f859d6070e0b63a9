"""A custom logger with an experiment on rank zero, and a callback that logs to it."""

import json
from argparse import Namespace
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset


class Experiment:
    def __init__(self, folder):
        self.folder, self.rows = folder, []

    def add(self, kind, content, step=None):
        self.rows.append([kind, content, step])


class JsonLogger(Logger):
    def __init__(self, save_dir, version="1"):
        super().__init__()
        self._save_dir, self._version, self._experiment, self.ended = save_dir, version, None, []

    @property
    def name(self):
        return "json"

    @property
    def version(self):
        return self._version

    @property
    def root_dir(self):
        return str(Path(self._save_dir, self.name))

    @property
    def save_dir(self):
        return self._save_dir

    @property
    @rank_zero_experiment
    def experiment(self):
        if self._experiment is None:
            self._experiment = Experiment(Path(self.root_dir, self.version))
        return self._experiment

    @rank_zero_only
    def log_hyperparams(self, params, *args, **kwargs):
        params = vars(params) if isinstance(params, Namespace) else dict(params)
        self.experiment.add("hparams", params)

    @rank_zero_only
    def log_metrics(self, metrics, step=None):
        self.experiment.add("metrics", {name: float(value) for name, value in metrics.items()}, step)

    @rank_zero_only
    def log_graph(self, model, input_array=None):
        self.experiment.add("graph", type(model).__name__)

    @rank_zero_only
    def save(self):
        self.experiment.folder.mkdir(parents=True, exist_ok=True)

    @rank_zero_only
    def finalize(self, status):
        self.ended.append(status)
        (self.experiment.folder / "rows.json").write_text(json.dumps(self.experiment.rows))

    def after_save_checkpoint(self, checkpoint_callback):
        self.experiment.add("checkpoint", Path(checkpoint_callback.last_model_path or "none").name)


class LogsImages(Callback):
    def on_validation_end(self, trainer, pl_module):
        for logger in trainer.loggers:
            if isinstance(logger, JsonLogger):
                logger.experiment.add("image", list(pl_module.layer.weight.shape), trainer.global_step)


class Model(LightningModule):
    def __init__(self, width=3, rates=(0.1, 0.2)):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layer(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.rates[0])


if __name__ == "__main__":
    seed_everything(53)
    loader = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=4)
    logger = JsonLogger("out")
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=[logger, DummyLogger()],
        callbacks=[LogsImages()],
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader, loader)
    rows = json.loads(Path("out/json/1/rows.json").read_text())
    print(
        json.dumps(
            {
                "rows": [row for row in rows if row[0] != "checkpoint"],
                "saved": any(row[0] == "checkpoint" for row in rows),
                "ended": logger.ended,
                "files": sorted(path.as_posix() for path in Path("out").rglob("*") if path.is_file()),
                "log dir": trainer.log_dir,
            }
        )
    )
