"""A user's script for torchrun, one rank of which kills itself in each of its first attempts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from tests.campaigns.torchrun_program import Kill, Killed, tell_of_the_rendezvous

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
KILLS = [Kill(**kill) for kill in json.loads(sys.argv[1])]
killed = Killed(Path(), RANK, ATTEMPT, dict(enumerate(KILLS)).get(ATTEMPT))
tell_of_the_rendezvous(killed)


class Line(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        killed.event("batch")
        x, y = batch
        return (self.layer(x) - y).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def data() -> TensorDataset:
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


def main() -> None:
    torch.manual_seed(1)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        max_epochs=1,
        callbacks=ModelCheckpoint("checkpoints", every_n_train_steps=1),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Line()
    trainer.fit(module, DataLoader(data(), 2), ckpt_path="auto")
    if trainer.is_global_zero:
        torch.save(module.state_dict(), "end.pt")


if __name__ == "__main__":
    main()
