"""dvclive: its logger for Lightning, with the metrics file that it writes."""

import json
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from dvclive.lightning import DVCLiveLogger
from sklearn.datasets import load_breast_cancer
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self, width=8, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(30, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    pl.seed_everything(19)
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0)).float()
    data = TensorDataset(x, torch.tensor(y))
    logger = DVCLiveLogger(dir="live", save_dvc_exp=False, report=None)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=5,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), DataLoader(data, 64, shuffle=True), DataLoader(data, 128))
    summary = json.loads(Path("live/metrics.json").read_text())
    print(
        json.dumps(
            {
                "loss": summary["train"]["epoch"]["loss"],
                "summary": {"validation": summary["val"]["loss"], "step": summary["train"]["step"]["loss"]},
                "parameters": Path("live/params.yaml").read_text(),
            }
        )
    )
