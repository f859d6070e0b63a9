"""The program that is killed to measure the time until its next optimizer step."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import ModelCheckpoint

STEPS = "steps"
PROCESSES = 2
# Modules that torch and lightlib import only when they are needed: with the first optimizer, Trainer and strategy.
WARM = ("torch._dynamo", "lightlib.core.trainer", "lightlib.strategies.mesh_presets")


class Net(L.Module):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.net = folder, torch.nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        file = os.open(self.folder / STEPS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{time.time():.3f} {self.global_step} {self.global_rank} {os.getpid()}\n".encode())
        os.close(file)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


def train(folder: str) -> None:
    """Train until a signal."""
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(4000, 4), torch.zeros(4000, dtype=torch.long))
    trainer = L.Trainer(
        accelerator="cpu", strategy="ddp", max_epochs=-1, logger=False, enable_progress_bar=False,
        callbacks=ModelCheckpoint(f"{folder}/checkpoints", every_n_train_steps=10, save_last=True),
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Net(Path(folder)), DataLoader(data, 4), ckpt_path="auto")


def agent(folder: str, endpoint: str) -> None:
    """Be an agent of torchrun that forks its ranks from a process in which all is imported."""
    multiprocessing.set_forkserver_preload([*WARM, "tests.campaigns.takeover_program"])
    forkserver.ensure_running()
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=PROCESSES, run_id="takeover", rdzv_backend="c10d",
        rdzv_endpoint=endpoint, max_restarts=9, monitor_interval=0.1, start_method="forkserver",
        local_addr="127.0.0.1",
        rdzv_configs={"keep_alive_interval": 1, "keep_alive_max_attempt": 2, "is_host": False, "last_call_timeout": 1},
    )  # fmt: skip
    elastic_launch(config, train)(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("endpoint", nargs="?", help="of the rendezvous: be an agent; without it a rank of torchrun")
    given = parser.parse_args()
    if given.endpoint:
        agent(given.folder, given.endpoint)
    else:
        train(given.folder)
