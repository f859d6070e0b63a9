"""A run that dies, judging by its files, at its k-th file operation, and is restarted."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import claims, filesystem
from lightlib.core.trainer import Trainer
from lightlib.data.seed import seed_everything
from tests.runs.modules import Regression
from tests.runs.plain import momentum

OPERATIONS = ("replace", "rename", "unlink", "remove", "symlink", "fsync", "rmdir")


class Death(BaseException):
    """The simulated death of a process: no file changes after it."""


class Files:
    """Counts operations on files, and refuses the k-th and all after it.

    Example:
        >>> with Files() as files:
        ...     os.symlink("nowhere", "link")
        >>> files.count
        1
    """

    def __init__(self, dies_at=None):
        self.dies_at = dies_at
        self.count = 0
        self._real = {}

    def __enter__(self):
        for name in OPERATIONS:
            self._real[name] = getattr(os, name)
            setattr(os, name, self._counted(self._real[name]))
        return self

    def __exit__(self, *error):
        for name, real in self._real.items():
            setattr(os, name, real)
        if self.dies_at is not None and self.count >= self.dies_at:
            for claim in claims._held.values():
                os.close(claim._handle)
            claims._held.clear()
            filesystem._asides.clear()

    def _counted(self, real):
        def operation(*args, **options):
            self.count += 1
            if self.dies_at is not None and self.count >= self.dies_at:
                raise Death(real.__name__, args)
            return real(*args, **options)

        return operation


class Net(Regression):
    """A resume that is not exact shows in the weights: dropout, momentum, order of the data."""

    def __init__(self, losses):
        layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        super().__init__(layers, momentum)
        self.losses = losses

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.log("val_loss", self.losses[self.trainer.global_step % len(self.losses)])


def command(folder, callbacks, losses=(9.0, 1.0, 2.0, 3.0), ckpt="auto", **arguments):
    """Run the program that is restarted again and again; it resumes if there is a checkpoint."""
    seed_everything(1)
    data = TensorDataset(torch.arange(24.0).reshape(6, 4) / 24)
    made = callbacks()
    trainer = Trainer(
        **{"max_epochs": 3, "val_check_interval": 1.0, **arguments},
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=made,
    )
    trainer.fit(Net(list(losses)), DataLoader(data, 2, shuffle=True), DataLoader(data, 6), ckpt_path=ckpt)
    return trainer, made


def outcome(folder, callbacks):
    """Return the visible outcome of a run: its files, their weights, and the callbacks' states."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        inside = any(parent.suffix == ".ckpt" and parent.is_dir() for parent in path.parents)
        if path.is_dir() and path.suffix != ".ckpt":
            continue
        if not inside:
            name = str(path.relative_to(folder)) + (f" -> {os.readlink(path)}" if path.is_symlink() else "")
            found[name] = content(path) if path.suffix == ".ckpt" else path.read_bytes()
    states = {callback.state_key: plain(callback.state_dict(), folder) for callback in callbacks}
    return found, states


def content(path):
    read = formats.load(path)
    label = formats.label_of(path)
    weights = {}
    for name, value in read["state_dict"].items():
        weights[name] = (value.read() if hasattr(value, "read") else value).tolist()
    return {"weights": weights, "epoch": label.epoch, "batch": label.batch, "step": label.step}


def plain(value, folder):
    """Tensors as numbers, and paths without the folder, so that two runs can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {plain(key, folder): plain(one, folder) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, folder) for one in value]
    return value.replace(str(folder), "") if isinstance(value, str) else value
