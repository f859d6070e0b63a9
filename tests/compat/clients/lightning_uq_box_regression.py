"""lightning-uq-box: a variance, SWAG and an ensemble of files, with their predictions."""

import csv
import json
import logging
import warnings
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning_uq_box.datamodules import ToyHeteroscedasticDatamodule
from lightning_uq_box.models import MLP
from lightning_uq_box.uq_methods import NLL, DeepEnsembleRegression, MVERegression, SWAGRegression


def network():
    return MLP(n_hidden=[16, 16], n_outputs=2, activation_fn=torch.nn.Tanh())


def variance():
    optimizer = partial(torch.optim.Adam, lr=1e-2)
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.5)
    return MVERegression(network(), burnin_epochs=2, optimizer=optimizer, lr_scheduler=schedule)


def trainer(name, epochs):
    Path(name).mkdir()  # the package writes its predictions there
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        log_every_n_steps=2,
        logger=CSVLogger("logs", name=name, version=""),
        default_root_dir=name,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def table(file):
    with Path(file).open() as lines:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(lines)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    pl.seed_everything(17)
    data = ToyHeteroscedasticDatamodule(n_points=160, batch_size=16)
    results, files = {}, []
    for name in ("first", "second"):
        model, run = variance(), trainer(name, 6)
        run.fit(model, datamodule=data)
        results[name] = {"tested": run.test(model, datamodule=data, verbose=False)}
        files.append({"base_model": variance(), "ckpt_path": run.checkpoint_callback.best_model_path})
    swag = SWAGRegression(model.model, 10, 3, 5, swag_lr=1e-3, loss_fn=NLL())
    run = trainer("swag", 3)
    run.fit(swag, datamodule=data)
    results["swag"] = {"tested": run.test(swag, datamodule=data, verbose=False)}
    run = trainer("ensemble", 1)
    ensemble = DeepEnsembleRegression(files)
    results["ensemble"] = {"tested": run.test(ensemble, datamodule=data, verbose=False)}
    for name, result in results.items():
        result["predictions"] = table(f"{name}/preds.csv")
        if name != "ensemble":  # it logs nothing
            result["charts"] = table(f"logs/{name}/metrics.csv")
    losses = [row["train_loss"] for row in results["second"]["charts"] if "train_loss" in row]
    print(json.dumps({"loss": losses[-1], **results}))
