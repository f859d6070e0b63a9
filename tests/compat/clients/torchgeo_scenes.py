"""torchgeo: a classifier of small scenes with its data module, its augmentations, test and prediction."""

import csv
import json
import logging
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torchgeo.datamodules import NonGeoDataModule
from torchgeo.datasets import NonGeoDataset
from torchgeo.trainers import ClassificationTask


class Scenes(NonGeoDataset):
    """Squares of four bands; the class is the band that is bright."""

    def __init__(self, split="train"):
        seed, count = {"train": (0, 26), "val": (1, 12), "test": (2, 12)}[split]
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % 3
        self.images = torch.rand(count, 4, 32, 32, generator=random)
        self.images[torch.arange(count), self.labels] += 0.5

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.images[index] * 200, "label": self.labels[index]}


class Data(NonGeoDataModule):
    mean, std = torch.tensor(0.0), torch.tensor(255.0)

    def __init__(self):
        super().__init__(Scenes, batch_size=6, num_workers=0)


def trainer(**options):
    return pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    pl.seed_everything(37)
    keep = ModelCheckpoint("files", "{epoch}-{val_loss:.3f}", "val_loss", save_top_k=2)
    run = trainer(
        logger=CSVLogger("logs", name="", version=""), callbacks=[keep, EarlyStopping("val_loss", patience=2)]
    )
    task = ClassificationTask("resnet18", in_channels=4, task="multiclass", num_classes=3, lr=1e-3, patience=1)
    run.fit(task, datamodule=Data())
    tested = run.test(task, datamodule=Data(), ckpt_path="best", verbose=False)
    again = ClassificationTask.load_from_checkpoint(keep.best_model_path)
    loader = torch.utils.data.DataLoader(Scenes("test"), batch_size=5)
    guesses = trainer(logger=False, enable_checkpointing=False).predict(again, loader)
    with Path("logs/metrics.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]

    losses = [row["train_loss"] for row in rows if "train_loss" in row]
    print(
        json.dumps(
            {
                "loss": losses[-1],
                "charts": rows,
                "tested": tested,
                "files": sorted(path.name for path in Path("files").iterdir()),
                "predicted": torch.cat(guesses).tolist(),
                "hyperparameters": {name: str(value) for name, value in again.hparams.items()},
            }
        )
    )
