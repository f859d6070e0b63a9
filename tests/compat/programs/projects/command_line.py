"""LightningCLI: a YAML file with class paths and some options on the command line."""

import json
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset

YAML = """
seed_everything: 7
model:
  class_path: __main__.Regression
  init_args: {features: 6, hidden: 10}
data:
  class_path: __main__.Numbers
  init_args: {batch_size: 8}
optimizer:
  class_path: torch.optim.SGD
  init_args: {lr: 0.02, momentum: 0.9}
lr_scheduler:
  class_path: torch.optim.lr_scheduler.StepLR
  init_args: {step_size: 1, gamma: 0.5}
trainer:
  max_epochs: 3
  accelerator: cpu
  enable_progress_bar: false
  enable_model_summary: false
  logger:
    class_path: lightning.pytorch.loggers.CSVLogger
    init_args: {save_dir: logs, name: run}
  callbacks:
    - class_path: lightning.pytorch.callbacks.LearningRateMonitor
      init_args: {logging_interval: epoch}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {monitor: val_loss, filename: "{epoch}-{step}"}
"""


class Numbers(LightningDataModule):
    def __init__(self, batch_size: int = 4, features: int = 6):
        super().__init__()
        self.batch_size = batch_size
        x = torch.randn(48, features, generator=torch.Generator().manual_seed(3))
        self.data = TensorDataset(x, x.sum(1, keepdim=True))

    def train_dataloader(self):
        return DataLoader(self.data, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, self.batch_size)


class Regression(LightningModule):
    def __init__(self, features: int, hidden: int = 4, note: str | None = None):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(features, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
        self.steps = []

    def training_step(self, batch):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.steps.append(loss.item())
        return loss

    def validation_step(self, batch):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), prog_bar=True)


class CLI(LightningCLI):
    def before_fit(self):
        self.seen = {"lr": self.config["fit"]["optimizer"]["init_args"]["lr"], "verb": self.subcommand}


if __name__ == "__main__":
    Path("config.yaml").write_text(YAML)
    sys.argv[1:] = ["fit", "--config", "config.yaml", "--trainer.max_epochs", "2", "--model.init_args.note", "mine"]
    cli = CLI(LightningModule, LightningDataModule, subclass_mode_model=True, subclass_mode_data=True)
    hparams = dict(cli.model.hparams)
    checkpoint = torch.load(cli.trainer.checkpoint_callback.best_model_path, weights_only=False)
    saved = Path(cli.trainer.log_dir, "config.yaml").read_text()
    print(
        json.dumps(
            {
                "steps": cli.model.steps,
                "seen": cli.seen,
                "hparams": {name: hparams[name] for name in ("features", "hidden", "note")},
                "in checkpoint": {name: checkpoint["hyper_parameters"][name] for name in ("features", "hidden")},
                "metrics": {name: float(value) for name, value in cli.trainer.callback_metrics.items()},
                "best": Path(cli.trainer.checkpoint_callback.best_model_path).name,
                "saved config has": [word in saved for word in ("seed_everything: 7", "max_epochs: 2", "note: mine")],
                "lr": cli.trainer.optimizers[0].param_groups[0]["lr"],
            }
        )
    )
