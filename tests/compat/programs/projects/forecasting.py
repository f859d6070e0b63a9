"""Forecasting library: a wrapper around the Trainer, lenient about loaders and steps."""

import json
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities.parsing import AttributeDict
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanSquaredError, MetricCollection


class Windows(Dataset):
    def __init__(self, series, length=8):
        self.windows = series.unfold(0, length + 1, 1)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return self.windows[index, :-1], self.windows[index, -1:]


class Network(LightningModule):
    def __init__(self, hidden, metrics=None):
        super().__init__()
        self.save_hyperparameters(AttributeDict(hidden=hidden))
        self.cell, self.out = torch.nn.GRU(1, hidden, batch_first=True), torch.nn.Linear(hidden, 1)
        self.train_metrics = MetricCollection(metrics or [], prefix="train_")
        self.losses = []

    def forward(self, x):
        return self.out(self.cell(x.unsqueeze(-1))[0][:, -1])

    def training_step(self, batch, batch_idx):
        guess = self(batch[0])
        loss = torch.nn.functional.mse_loss(guess, batch[1])
        self.log("train_loss", loss, batch_size=len(batch[0]), prog_bar=True, sync_dist=True)
        self.train_metrics.update(guess, batch[1])
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        self.log_dict(self.train_metrics.compute(), prog_bar=True)
        self.train_metrics.reset()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self(batch[0]), batch[1]), batch_size=len(batch[0]))

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Forecaster:
    def __init__(self, hidden=6, epochs=2, lr=0.05, **trainer):
        self.settings = {
            "accelerator": "cpu",
            "logger": False,
            "max_epochs": epochs,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **trainer,
        }
        self.network = Network(hidden, [MeanSquaredError()])
        self.network.lr = lr

    def fit(self, series, validation=None):
        self.trainer = Trainer(**self.settings)
        loaders = [] if validation is None else [DataLoader(Windows(validation), 16)]
        self.trainer.fit(self.network, DataLoader(Windows(series), 16, shuffle=True), loaders)
        return {name: value.item() for name, value in self.trainer.callback_metrics.items()}

    def predict(self, series):
        return torch.cat(self.trainer.predict(self.network, DataLoader(Windows(series), 16)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    seed_everything(21, workers=True)
    time = torch.arange(120.0)
    series = torch.sin(time / 5) + 0.1 * torch.randn(120)
    without, within = Forecaster(), Forecaster(gradient_clip_val=0.5)
    figures = {"no validation": without.fit(series[:90]), "validation": within.fit(series[:90], series[90:])}
    print(
        json.dumps(
            {
                **figures,
                "losses": without.network.losses + within.network.losses,
                "guesses": within.predict(series[100:]).flatten().tolist(),
                "hparams": dict(within.network.hparams),
            }
        )
    )
