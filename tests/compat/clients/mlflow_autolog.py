"""mlflow: autologging of a run of the Trainer into a SQLite store, with its metrics and parameters."""

import json
import logging
import warnings

import lightning.pytorch as pl
import mlflow
import torch
from sklearn.datasets import load_wine
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(13, 3)

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        hits = self.layer(batch[0]).argmax(1) == batch[1]
        self.log("val_acc", hits.float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    pl.seed_everything(15)
    x, y = load_wine(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0)).float()
    data = TensorDataset(x, torch.tensor(y))
    mlflow.set_tracking_uri("sqlite:///runs.db")
    mlflow.pytorch.autolog(log_models=False, checkpoint=False)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with mlflow.start_run() as run:
        trainer.fit(Model(), DataLoader(data, 32, shuffle=True), DataLoader(data, 64))
    stored = mlflow.MlflowClient()
    history = [metric.value for metric in stored.get_metric_history(run.info.run_id, "train_loss")]
    params = stored.get_run(run.info.run_id).data.params
    print(
        json.dumps(
            {
                "loss": history[-1],
                "losses": history,
                "validation": stored.get_run(run.info.run_id).data.metrics["val_acc"],
                "parameters": {
                    name: params[name] for name in sorted(params) if name in ("lr", "optimizer_name", "epochs")
                },
            }
        )
    )
