"""nequip: an interatomic potential with averaged weights, then without them in two processes."""

import csv
import json
import logging
import warnings
from pathlib import Path

import ase.io
import lightning.pytorch as pl
import numpy as np
import torch
from ase.build import molecule
from ase.calculators.emt import EMT
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from nequip.data.datamodule import ASEDataModule
from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
from nequip.train import EMALightningModule, NequIPLightningModule
from nequip.utils.global_state import set_global_state

TYPES = ["C", "H", "O"]
TRAIN = "nequip.train."


def write(file):
    """Write 24 bent molecules of ethanol, with the energies and forces of a classical potential."""
    random, frames = np.random.default_rng(4), []
    for _ in range(24):
        atoms = molecule("CH3CH2OH")
        atoms.positions += random.normal(0, 0.08, atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_forces()
        frames.append(atoms)
    ase.io.write(file, frames, format="extxyz")


def data():
    return ASEDataModule(
        seed=3,
        split_dataset={"file_path": "bent.xyz", "train": 14, "val": 5, "test": 5},
        transforms=[ChemicalSpeciesToAtomTypeMapper(model_type_names=TYPES), NeighborListTransform(r_max=3.0)],
        train_dataloader={"batch_size": 2, "shuffle": True},
        val_dataloader={"batch_size": 3},
        test_dataloader={"batch_size": 3},
    )


def module(kind, **options):
    network = {
        "_target_": "nequip.model.NequIPGNNModel",
        "seed": 9,
        "model_dtype": "float32",
        "type_names": TYPES,
        "r_max": 3.0,
        "num_layers": 2,
        "l_max": 1,
        "num_features": 4,
        "radial_mlp_width": 8,
        "avg_num_neighbors": 7.0,
        "per_type_energy_shifts": {"C": 1.0, "H": 0.5, "O": 1.5},
    }
    return kind(
        model=network,
        num_datasets={"train": 1, "val": 1, "test": 1, "predict": 0},
        optimizer={"_target_": "torch.optim.Adam", "lr": 0.01},
        lr_scheduler={
            "scheduler": {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau", "factor": 0.6, "patience": 0},
            "monitor": "val0_epoch/weighted_sum",
            "interval": "epoch",
            "frequency": 1,
        },
        loss={"_target_": TRAIN + "EnergyForceLoss"},
        train_metrics={"_target_": TRAIN + "EnergyForceMetrics"},
        val_metrics={"_target_": TRAIN + "EnergyForceMetrics"},
        test_metrics={"_target_": TRAIN + "EnergyForceMetrics"},
        **options,
    )


def trainer(name, epochs, **options):
    keep = ModelCheckpoint(f"files/{name}", "best", "val0_epoch/weighted_sum", save_last=True)
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        log_every_n_steps=2,
        inference_mode=False,
        logger=CSVLogger("logs", name=name, version=""),
        callbacks=[keep, LearningRateMonitor("epoch")],
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def charts(name):
    with Path("logs", name, "metrics.csv").open() as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


def saved(name):
    state = torch.load(f"files/{name}/last.ckpt", weights_only=False)["state_dict"]
    return {key: value.double().abs().sum().item() for key, value in state.items() if isinstance(value, torch.Tensor)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    set_global_state()
    pl.seed_everything(41)
    write("bent.xyz")
    model, run = module(EMALightningModule, ema_decay=0.9), trainer("averaged", 3, devices=1)
    run.fit(model, datamodule=data())
    tested = run.test(model, datamodule=data(), verbose=False)
    model = module(NequIPLightningModule)
    model.world_size = 2
    trainer("two", 2, devices=2, strategy="ddp_spawn").fit(model, datamodule=data())
    names = ("averaged", "two")
    losses = [row["train_loss_epoch/weighted_sum"] for row in charts("two") if "train_loss_epoch/weighted_sum" in row]
    print(
        json.dumps(
            {
                "loss": losses[-1],
                "tested": tested,
                "charts": {name: charts(name) for name in names},
                "files": {name: saved(name) for name in names},
            }
        )
    )
