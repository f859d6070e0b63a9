"""A user's script: rank 1 lives on for a while when rank 0, which hosts the store, has ended."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.launch import launch_function
from tests.processes.ends import ends

QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Line(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).mean()

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def use_trainers() -> None:
    data = DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=2)
    for _ in range(2):
        trainer = L.Trainer(accelerator="cpu", devices=2, max_epochs=1, enable_checkpointing=False, **QUIET)
        trainer.fit(Line(), data)
    trainer.predict(Line(), data)


def use_fabric() -> None:
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    assert fabric.all_reduce(torch.tensor(1.0), reduce_op="sum") == 2


def work(rank: int) -> None:
    Path(f"begun.{rank}").write_text(str(os.getpid()))
    {"trainers": use_trainers, "fabric": use_fabric}[sys.argv[2]]()
    if rank == 1:
        assert ends(int(Path("begun.0").read_text()))
        time.sleep(1)  # several times as long as the watch lets pass until it looks again


if __name__ == "__main__":
    if sys.argv[1] == "variables":
        work(int(os.environ["RANK"]))
    else:
        launch_function(work, 2, sys.argv[1])
