"""torch-uncertainty: an ensemble, tested on known classes and on an unknown one."""

import csv
import json
import logging
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch_uncertainty import TUTrainer
from torch_uncertainty.callbacks import TUClsCheckpoint
from torch_uncertainty.methods import deep_ensembles
from torch_uncertainty.routines import ClassificationRoutine
from torch_uncertainty.transforms import RepeatTarget


def network():
    return torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 6))


def recipe(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    pl.seed_everything(23)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x).float() / 16, torch.tensor(y)
    known, strange = y < 6, y == 9
    x, y, ood = x[known], y[known], TensorDataset(x[strange][:60], y[strange][:60])
    train, val, test = (TensorDataset(x[part], y[part]) for part in (slice(300), slice(300, 420), slice(420, 540)))
    ensemble = deep_ensembles([network(), network()])
    routine = ClassificationRoutine(
        model=ensemble,
        num_classes=6,
        loss=torch.nn.CrossEntropyLoss(),
        is_ensemble=True,
        format_batch_fn=RepeatTarget(2),
        optim_recipe=recipe,
        eval_ood=True,
    )
    keep = TUClsCheckpoint()
    trainer = TUTrainer(
        max_epochs=3,
        accelerator="cpu",
        log_every_n_steps=2,
        logger=CSVLogger("logs", name="", version=""),
        callbacks=[keep],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(routine, DataLoader(train, 32, shuffle=True), DataLoader(val, 60))
    tested = trainer.test(routine, [DataLoader(test, 60), DataLoader(ood, 60)])
    with Path("logs/metrics.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    losses = [row["train_loss"] for row in rows if "train_loss" in row]
    print(
        json.dumps(
            {
                "loss": losses[-1],
                "charts": rows,
                "tested": tested,
                "files": sorted(path.name for path in Path("logs").rglob("*.ckpt")),
                "weights": [parameter.abs().sum().item() for parameter in routine.parameters()],
            }
        )
    )
