"""A user's script that fails as requested: `failing.py WHAT RANK [--strategy ...]`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP and optimizers would import it within the run: for seconds a busy machine shows no progress
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lightlib as L
from lightlib.core import processes
from lightlib.launch.watch.timing import Timing
from lightlib.launch.watch.watch import Watch
from lightlib.strategies.mesh_presets import DDPStrategy, FSDPStrategy, PipelineStrategy

STRATEGIES = {"ddp": DDPStrategy, "fsdp": FSDPStrategy, "pipeline": PipelineStrategy}
parser = argparse.ArgumentParser()
parser.add_argument("what")
parser.add_argument("rank", type=int)
parser.add_argument("--strategy", default="ddp")
parser.add_argument("--start-method", default="popen")
parser.add_argument("--timeout", type=float, default=3600.0, help="a rank that waits for it hangs the test")
parser.add_argument("--patience", type=float, default=0.5, help="instead, as soon as a rank sleeps")
given = parser.parse_args()
# A rank that waits in a collective has this long to get out of it, which it cannot.
processes.Watch = partial(Watch, timing=Timing(grace=0.5, short_grace=0.5))


def fail() -> None:
    """Fail as requested."""
    if given.what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if given.what == "sleep":
        Path("asleep").touch()
        time.sleep(1e5)
    if given.what == "exit":
        sys.exit(3)
    if given.what.startswith("leave"):
        os._exit(0)
    raise ValueError(f"the sample of rank {os.environ['RANK']} is broken")


def due(*names: str) -> bool:
    """Whether this is the rank and the place for it."""
    return given.what in names and os.environ.get("RANK") == str(given.rank)


class Net(L.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 2))

    def prepare_data(self) -> None:
        if due("prepare_data"):
            fail()

    def setup(self, stage: str) -> None:
        if due("setup", "leave in setup"):
            fail()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == 5 and due("kill", "sleep", "exit", "leave", "training_step"):
            fail()
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1 and due("validation_step"):
            fail()
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        if due("configure_optimizers"):
            fail()
        return torch.optim.AdamW(self.parameters(), 0.01)


class Stream(IterableDataset):
    """A stream that is longer on one rank."""

    def __init__(self, samples: TensorDataset, count: int) -> None:
        self.samples, self.count = samples, count

    def __iter__(self) -> Any:
        return iter([self.samples[i] for i in range(self.count)])


class Stage(nn.Module):
    """A layer of a pipeline, which is on one rank only, and fails there."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 20:
            fail()
        return x


def lose_patience() -> None:
    """Shorten the timeout once the other rank sleeps; earlier, a slow machine could trigger it."""
    while not Path("asleep").exists():
        time.sleep(0.01)
    watch = processes._watch[-1]
    print(f"timeout of the watch: {watch.timeout:g} s")
    watch.timeout = watch._hang_detector._timeout = given.patience


class Callback(L.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 5 and given.what == "sleep" and not due("sleep"):
            threading.Thread(target=lose_patience, daemon=True).start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 4 and due("callback"):
            fail()


def main() -> None:
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    module = Net(width=8 + rank if given.what == "models" else 8)
    if given.what == "layer":
        module.net.insert(4 if given.rank else 1, Stage())
    options = {} if given.start_method == "popen" else {"start_method": given.start_method}
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=STRATEGIES[given.strategy](timeout=given.timeout, **options),
        max_epochs=3,
        callbacks=Callback(),
        use_distributed_sampler=given.what != "unequal",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(torch.randn(160, 4), torch.randint(2, (160,)))
    if given.what == "unequal" and rank == 1:
        data = TensorDataset(*(tensor[:100] for tensor in data.tensors))
    train = Stream(data, 64 + 32 * (rank == given.rank)) if given.what == "streams" else data
    trainer.fit(module, DataLoader(train, 8), DataLoader(data, 8))
    print("came to the end", trainer.global_rank)


if __name__ == "__main__":
    main()
