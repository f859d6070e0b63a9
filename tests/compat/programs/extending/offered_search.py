"""A script that offers a learning-rate search: it imports Tuner, and searches only with `--find-lr`."""

import argparse
import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, LearningRateMonitor
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.tuner.tuning import Tuner as DeepTuner
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.steps = []

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.steps.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--find-lr", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    seed_everything(89)
    x = torch.randn(64, 4)
    loader = DataLoader(TensorDataset(x, x.square().sum(1, keepdim=True)), batch_size=8)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model(given.lr)
    if given.find_lr:
        model.lr = Tuner(trainer).lr_find(model, loader).suggestion()
    trainer.fit(model, loader)
    searching = (LearningRateFinder, BatchSizeFinder, LearningRateMonitor)
    print(
        json.dumps(
            {
                "steps": model.steps,
                "lr": model.hparams.lr,
                "one class": Tuner is DeepTuner,
                "searching": [isinstance(callback, searching) for callback in trainer.callbacks],
            }
        )
    )
