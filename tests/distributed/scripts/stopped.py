"""A user's script that gets signals at chosen batches, and resumes from a checkpoint."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.launch import SLURMEnvironment

parser = argparse.ArgumentParser()
parser.add_argument("--what", choices=["SIGTERM", "SIGINT", "SIGUSR1", "should_stop", "twice", "none"], default="none")
parser.add_argument("--to", default="group", help="the rank that gets it, 'group': all of the terminal, or 'agent'")
parser.add_argument("--where", choices=["train", "validate", "sanity", "end"], default="train")
parser.add_argument("--at", type=int, default=7, help="which batch, counted over the full run")
parser.add_argument("--together", action="store_true", help="the other ranks receive it in the same batch")
parser.add_argument("--again", action="store_true", help="a further SIGTERM comes while the checkpoint is written")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--strategy", default="ddp")
parser.add_argument("--ckpt-path", default=None)
given = parser.parse_args()


def receive(trainer: L.Trainer) -> None:
    """Get the signal, as from a terminal or a scheduler, once all ranks are in the loop."""
    while not all(Path(f"begun-{rank}").exists() for rank in range(trainer.world_size)):
        time.sleep(0.001)
    Path("signalled").touch()
    number = getattr(signal, given.what, signal.SIGINT)
    for _ in range(2 if given.what == "twice" else 1):
        if given.to == "group":
            os.killpg(0, number)
        else:
            os.kill(os.getppid() if given.to == "agent" else os.getpid(), number)
        hear(trainer)


def hear(trainer: L.Trainer) -> None:
    """Wait until this rank knows that the run is to be left."""
    while trainer.stop_signal is None and not trainer.should_stop:
        time.sleep(0.001)


class Net(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 2))
        self.batches = {"train": 0, "validate": 0}

    @property
    def chosen(self) -> bool:
        """Whether the signal or the request to stop is for this rank."""
        return self.global_rank == (int(given.to) if given.to.isdigit() else 0)

    def count(self, stage: str) -> None:
        self.batches[stage] += 1
        Path(f"begun-{self.global_rank}").touch()
        now = "sanity" if self.trainer.sanity_checking else stage
        if given.what == "none" or given.where != now:
            return
        if self.chosen and self.batches[stage] == given.at:
            if given.what == "should_stop":
                self.trainer.should_stop = True
            else:
                receive(self.trainer)
        # A request to stop reaches the other ranks when the requesting rank ends its batch.
        elif not self.chosen and given.together and self.batches[stage] == given.at + (given.what == "should_stop"):
            hear(self.trainer)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.count("train")
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.count("validate")
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if given.again and Path("signalled").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    def on_exception(self, exception: BaseException) -> None:
        self.leave()

    def on_fit_end(self) -> None:
        self.leave()
        if given.where == "end" and self.chosen:
            receive(self.trainer)

    def leave(self) -> None:
        """Leave a note of where this process left the run."""
        trainer, progress = self.trainer, self.trainer.progress
        Path(f"left-{trainer.global_rank}").write_text(f"{progress.epoch} {progress.batch} {progress.step}")


def main() -> None:
    torch.manual_seed(0)
    module = Net()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=given.strategy,
        max_epochs=given.epochs,
        accumulate_grad_batches=given.accumulate,
        callbacks=ModelCheckpoint("checkpoints", save_last=True),
        plugins=SLURMEnvironment(),
        num_sanity_val_steps=2 * (given.where == "sanity"),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(80, 4, generator=generator), torch.randint(2, (80,), generator=generator))
    trainer.fit(module, DataLoader(data, 4, shuffle=True), DataLoader(data, 8), ckpt_path=given.ckpt_path)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    weights = trainer.strategy.module_state()
    torch.save({"weights": weights, "metrics": metrics}, f"end-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
