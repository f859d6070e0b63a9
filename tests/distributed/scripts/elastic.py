"""A user's script for torchrun with machines that come and go; one line resumes from the last save."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import ModelCheckpoint

STEPS, DELAY = int(sys.argv[1]), float(sys.argv[2])  # -1 steps: until there is a file named finish


class Net(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def on_train_start(self) -> None:
        self.note("begins")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note("step")
        if Path("finish").exists():
            self.trainer.should_stop = True

    def note(self, what: str) -> None:
        """Append an event and its time to a file, for the test."""
        start = os.environ["TORCHELASTIC_RESTART_COUNT"]
        line = f"{what} {self.global_step} world {self.trainer.world_size} rank {self.global_rank} start {start}"
        with Path("notes").open("a") as file:
            file.write(f"{line} at {time.time():.2f}\n")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(DELAY)
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


def main() -> None:
    torch.manual_seed(0)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        max_epochs=-1,
        max_steps=STEPS,
        callbacks=ModelCheckpoint("checkpoints", every_n_train_steps=5, save_last=True),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(160, 4, generator=generator), torch.randint(2, (160,), generator=generator))
    module = Net()
    trainer.fit(module, DataLoader(data, 4, shuffle=True), ckpt_path="last")
    torch.save(module.state_dict(), f"end-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
