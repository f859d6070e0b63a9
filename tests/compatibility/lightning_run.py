"""A small run, saved in every hook, that lightlib trains as Lightning does; makes lightning_2_6_6.zip.

``python -m tests.compatibility.lightning_run`` writes the stored files again, with the installed Lightning.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STORED = Path(__file__).with_name("lightning_2_6_6.zip")
BATCHES, EPOCHS = 4, 2  # per epoch; in all

# Arguments of the Trainer, and of `build`, by the name of the run.
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"val_check_interval": 2}, {}),
    "window": ({"accumulate_grad_batches": 2}, {}),
    "stateful": ({}, {"stateful": True}),
    "manual": ({}, {"manual": True}),
}
# The stored files: Lightning's place in the run, as epoch-batch-hook or epoch-hook.
KEPT = {
    "plain": ["0-0-batch", "1-2-batch", "1-1-batch", "1-1-validation", "0-3-batch", "0-epoch"],
    "window": ["1-0-batch", "0-1-batch"],
    "stateful": ["1-1-batch"],
    "manual": ["0-1-batch"],
}


class Shuffled:
    """A loader that draws an order per epoch and keeps its own position."""

    def __init__(self) -> None:
        self.epoch, self.place, self.loaded = 0, 0, False

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Any:
        if not self.loaded:
            self.epoch, self.place = self.epoch + 1, 0
        self.loaded = False
        order = torch.randperm(BATCHES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.place < BATCHES:
            self.place += 1
            yield [batch_of(order[self.place - 1])]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.place, self.loaded = state["epoch"], state["place"], True


def batch_of(number: int) -> torch.Tensor:
    """Two samples that begin with the number of their batch."""
    return torch.tensor([[float(number), 1.0, -2.0], [float(number), -1.0, 0.5]])


@dataclass
class Record:
    """Record of a run."""

    module: Any
    trainer: Any
    stopping: Any
    best: Any = None  # a ModelCheckpoint
    batches: list[tuple[int, int]] = field(default_factory=list)  # (epoch, which batch)
    steps: list[int] = field(default_factory=list)  # global_step before each batch
    validations: list[tuple[int, int]] = field(default_factory=list)  # (epoch, global_step)


def network(framework: Any, record: Record, manual: bool) -> Any:
    """Return the module, written once for both frameworks."""

    class Net(framework.LightningModule):
        def __init__(self, width: int = 2, lr: float = 0.05) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            record.batches.append((self.current_epoch, int(batch[0][0, 0])))
            record.steps.append(self.global_step)
            loss = self.net(batch[0]).pow(2).mean()
            if manual:
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                self.manual_backward(loss)
                for optimizer in self.optimizers():
                    optimizer.step()
                return None
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0:
                record.validations.append((self.current_epoch, self.global_step))
            self.log("v", self.net(batch[0]).abs().mean())

        def configure_optimizers(self) -> Any:
            if manual:
                return [torch.optim.SGD(self.net[k].parameters(), lr=0.05, momentum=0.9) for k in (0, 2)]
            optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    return Net


def numbers(framework: Any, stateful: bool) -> Any:
    """Return the data module, written once for both frameworks."""

    class Numbers(framework.LightningDataModule):
        def __init__(self, size: int = 2) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.asked = 0

        def train_dataloader(self) -> Any:
            self.asked += 1
            rows = torch.cat([batch_of(k) for k in range(BATCHES)])
            return Shuffled() if stateful else DataLoader(TensorDataset(rows), batch_size=self.hparams.size)

        def val_dataloader(self) -> Any:
            return DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2)

        def state_dict(self) -> dict[str, Any]:
            return {"asked": self.asked}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.asked = state["asked"]

    return Numbers


def train(
    framework: Any, name: str, folder: Path | None = None, ckpt_path: Path | None = None, best: Path | None = None
) -> Record:
    """Train the run `name`, from the start or a checkpoint; save it in every hook if `folder` is given.

    Args:
        best: The folder of a ModelCheckpoint; None for none.
    """
    arguments, build = RUNS[name]

    class Saves(framework.Callback):
        def save(self, trainer: Any, place: str) -> None:
            if folder is not None:
                trainer.save_checkpoint(str(folder / f"{place}.ckpt"))

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
        ) -> None:
            self.batch = batch_idx
            self.save(trainer, f"{trainer.current_epoch}-{batch_idx}-batch")

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            self.save(trainer, f"{trainer.current_epoch}-{getattr(self, 'batch', 0)}-validation")

        def on_train_epoch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:  # outputs before 1.4
            self.save(trainer, f"{trainer.current_epoch}-epoch")

    stopping = framework.callbacks.EarlyStopping("v", patience=100, check_on_train_epoch_end=False)
    saving = [framework.callbacks.ModelCheckpoint(str(best), monitor="v")] if best is not None else []
    trainer = framework.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=bool(saving),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[stopping, Saves(), *saving],
        **arguments,
    )
    record = Record(None, trainer, stopping, *saving)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        record.module = network(framework, record, build.get("manual", False))()
    data = numbers(framework, build.get("stateful", False))()
    trainer.fit(record.module, datamodule=data, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return record


def installed_lightning() -> Any:
    """Import the real Lightning and return `lightning.pytorch`, which prints errors only.

    Its import sets PYTORCH_NVML_BASED_CUDA_CHECK for the program; the tests that follow get the variables from before.
    """
    with mock.patch.dict(os.environ):
        import lightning.pytorch

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return lightning.pytorch


def make(framework: Any, folder: Path, kept: bool = True) -> list[Path]:
    """Train all runs, saved in every hook; return the files, only those in `KEPT` if `kept`."""
    for name in RUNS:
        (folder / name).mkdir(parents=True)
        train(framework, name, folder / name)
        for file in (folder / name).iterdir():
            if kept and file.stem not in KEPT[name]:
                file.unlink()
    return sorted(folder.rglob("*.ckpt"))


def main() -> None:
    """Write the stored files."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        files = make(installed_lightning(), Path(folder))
        with zipfile.ZipFile(STORED, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for file in files:
                info = zipfile.ZipInfo(f"{file.parent.name}/{file.name}", (2026, 1, 1, 0, 0, 0))
                archive.writestr(info, file.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    sys.stdout.write(f"{STORED.name}: {len(files)} files, {STORED.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
