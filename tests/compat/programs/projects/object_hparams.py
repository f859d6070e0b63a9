"""Molecules: hyperparameters that are modules, metrics and partials, saved and built again."""

import json
from functools import partial

import torch
from lightning import pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core.mixins import HyperparametersMixin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError


class MessagePassing(nn.Module, HyperparametersMixin):
    def __init__(self, width: int = 8, activation: nn.Module | None = None):
        super().__init__()
        self.save_hyperparameters(ignore=["activation"])
        self.hparams["cls"] = self.__class__
        self.layer, self.activation = nn.Linear(5, width), activation or nn.ReLU()

    def forward(self, x):
        return self.activation(self.layer(x))


class Model(pl.LightningModule):
    def __init__(self, block: nn.Module, metric, optimizer: partial, warmup: int = 2):
        super().__init__()
        self.save_hyperparameters(ignore=["block"])
        self.hparams.update({"block": block.hparams})
        self.block, self.metric, self.head = block, metric, nn.Linear(block.hparams.width, 1)
        self.steps = []

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.head(self.block(batch[0])), batch[1])
        self.steps.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.metric.update(self.head(self.block(batch[0])), batch[1])
        self.log("val_mae", self.metric)

    def configure_optimizers(self):
        return self.hparams.optimizer(self.parameters())

    @classmethod
    def load(cls, path):
        """Build the block from the file, then the model."""
        hparams = torch.load(path, map_location="cpu", weights_only=False)["hyper_parameters"]
        kept = dict(hparams["block"])
        return cls.load_from_checkpoint(path, block=kept.pop("cls")(**kept), weights_only=False)


if __name__ == "__main__":
    pl.seed_everything(11)
    x = torch.randn(64, 5)
    loader = DataLoader(TensorDataset(x, x.abs().sum(1, keepdim=True)), batch_size=16)
    model = Model(MessagePassing(6, nn.Tanh()), MeanAbsoluteError(), partial(torch.optim.Adam, lr=0.01))
    keep = ModelCheckpoint("models", monitor="val_mae", mode="min", filename="best-{epoch}")
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, loader, loader)

    saved = torch.load(keep.best_model_path, weights_only=False)["hyper_parameters"]
    again = Model.load(keep.best_model_path)
    scores = trainer.validate(again, loader, verbose=False)
    print(
        json.dumps(
            {
                "steps": model.steps,
                "best": keep.best_model_score.item(),
                "again": scores[0]["val_mae"],
                "hparams": {name: type(value).__name__ for name, value in saved.items()},
                "lr": saved["optimizer"].keywords["lr"],
                "block": {"width": saved["block"]["width"], "cls": saved["block"]["cls"].__name__},
                "warmup": again.hparams.warmup,
            }
        )
    )
