"""Killed programs of Lightning's that run again with ckpt_path="last" end as one that is not killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import programs

PROGRAM = """
import csv, json, os, signal, sys
from pathlib import Path

import lightlib.compat
lightlib.compat.install()

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

HOOK, COUNT, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3]

calls = []  # of this process: attributes of the callback would be restored

class Kills(Callback):
    def __getattribute__(self, name):
        if name == HOOK:
            calls.append(name)
            if len(calls) == COUNT:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getattribute__(name)

    def on_train_batch_end(self, *args): self.HOOK_batch
    def on_validation_batch_end(self, *args): self.HOOK_validation
    def on_train_epoch_end(self, *args): self.HOOK_epoch
    def on_save_checkpoint(self, *args): self.HOOK_save
    HOOK_batch = HOOK_validation = HOOK_epoch = HOOK_save = None

class Data(LightningDataModule):
    def loader(self, shuffle):
        inputs = torch.arange(60.0).reshape(20, 3).sin()
        return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=3, shuffle=shuffle)

    def train_dataloader(self): return self.loader(True)
    def val_dataloader(self): return self.loader(False)

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))

    def step(self, batch): return (self.layers(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx): self.log("val", self.step(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]

seed_everything(7)
saves = ModelCheckpoint(f"{FOLDER}/files", "{epoch}-{step}", monitor="val", save_top_k=2, save_last=True)
steps = ModelCheckpoint(f"{FOLDER}/steps", "{step}", every_n_train_steps=2, save_last=True)
trainer = Trainer(
    accelerator="cpu", max_epochs=3, val_check_interval=0.5, log_every_n_steps=2, enable_progress_bar=False,
    callbacks=[Kills(), saves, steps, EarlyStopping("val", patience=9)], enable_model_summary=False,
    logger=CSVLogger(FOLDER, name="logs", version=0),
)
model = Model()
trainer.fit(model, datamodule=Data(), ckpt_path="last")
rows = list(csv.DictReader(open(f"{FOLDER}/logs/version_0/metrics.csv")))
print("END", json.dumps({
    "weights": [value for each in model.parameters() for value in each.flatten().tolist()],
    "rates": [group["lr"] for group in trainer.optimizers[0].param_groups],
    "rows": [{name: value for name, value in row.items() if value} for row in rows],
    "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
    "files": sorted(path.relative_to(FOLDER).as_posix() for path in Path(FOLDER).rglob("*.ckpt")),
    "best": {os.path.basename(path): score.item() for path, score in saves.best_k_models.items()},
    "last": os.path.basename(saves.last_model_path), "position": [trainer.current_epoch, trainer.global_step],
}))
"""


def end(hook: str, count: int, folder: str) -> tuple[int, dict[str, object]]:
    """Run the program until it is not killed any more; return the number of kills and its last line."""
    for kills in range(40):
        done = programs.run("program.py", hook, count, folder)
        lines = [line for line in done.stdout.splitlines() if line.startswith("END ")]
        if lines:
            return kills, json.loads(lines[0].removeprefix("END "))
        assert done.returncode == -9, done.stderr
    raise AssertionError("it is killed for ever")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("hook", "count", "kills"),
    [("HOOK_batch", 5, 5), ("HOOK_save", 6, 8)],
)
def test_a_killed_program_ends_as_one_that_is_not(hook, count, kills):
    """Without a file the first run starts from nothing, as in Lightning; each further one continues."""
    Path("program.py").write_text(PROGRAM)
    none, expected = end("none", 0, "whole")
    killed, found = end(hook, count, "killed")
    assert found == expected, killed
    assert none == 0
    assert killed == kills
    assert len(expected["rows"]) > 10
