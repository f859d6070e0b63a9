"""optuna-integration: four trials with the pruning callback for Lightning."""

import json
import warnings

import lightning.pytorch as pl
import optuna
import torch
from optuna_integration import PyTorchLightningPruningCallback
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(10, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def objective(trial):
    pl.seed_everything(1)
    x, y = load_diabetes(return_X_y=True)
    x, y = torch.tensor(x).float() * 20, torch.tensor(y).float().unsqueeze(1) / 100
    train, val = TensorDataset(x[:350], y[:350]), TensorDataset(x[350:], y[350:])
    model = Model(trial.suggest_int("width", 4, 32), trial.suggest_float("lr", 1e-4, 1e-1, log=True))
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        callbacks=[PyTorchLightningPruningCallback(trial, monitor="val_loss")],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(train, 32, shuffle=True), DataLoader(val, 64))
    return trainer.callback_metrics["val_loss"].item()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
    study.optimize(objective, n_trials=5)
    states = [trial.state.name for trial in study.trials]
    print(json.dumps({"loss": study.best_value, "states": states, "values": [trial.value for trial in study.trials]}))
