"""A program that reads a stream: it logs the samples of each step, and may be killed at one."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import lightlib as L
from tests.data.streams.libraries import BATCH, SAMPLES, Place

EPOCHS = 2
EVERY = 3  # steps between checkpoints: two ranks, and three, have then read full rounds
Make = Callable[[Place, int], Any]


class Death(NamedTuple):
    """When a run is killed: within `step`, all of it or one rank."""

    step: int
    rank: int | None


class Reads(L.Module):
    def __init__(self, log: Path, death: Death | None, make: Callable[[], Any]) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.log_path, self.death, self.make = log, death, make

    def train_dataloader(self) -> Any:
        return self.make()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        trainer, ids = self.trainer, ids_in(batch)
        row = [trainer.current_epoch, trainer.global_step, batch_idx, trainer.global_rank, ids]
        with self.log_path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self.death is not None and trainer.global_step == self.death.step:
            if self.death.rank is None:
                os.killpg(0, signal.SIGKILL)
            elif self.death.rank == trainer.global_rank:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.net(torch.tensor(ids, dtype=torch.float32)[:, None] / SAMPLES).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def ids_in(batch: Any) -> list[int]:
    """Return the numbers of the samples in a batch of any of the libraries."""
    while not isinstance(batch, torch.Tensor):
        batch = batch["id"] if isinstance(batch, dict) else batch[0]
    return [int(number) for number in batch.flatten()]


def main(make: Make, place: Place, where: Path, attempt: int, death: Death | None, early: bool, workers: int) -> None:
    """Train; resume from the checkpoint of an earlier attempt."""
    torch.manual_seed(11)
    random.seed(11)
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("RANK", "0")
    where.mkdir(parents=True, exist_ok=True)
    saves = L.callbacks.ModelCheckpoint(where / "saved", every_n_train_steps=EVERY, save_top_k=-1)
    trainer = L.Trainer(
        accelerator="cpu", devices=size, strategy="ddp" if size > 1 else "auto", max_epochs=EPOCHS, callbacks=[saves],
        logger=False, enable_progress_bar=False, default_root_dir=where,
    )  # fmt: skip
    loader = make(place, workers) if early else None
    module = Reads(where / f"{attempt}-{rank}.jsonl", death, lambda: make(place, workers) if loader is None else loader)
    trainer.fit(module, ckpt_path="auto")


class Rows(dict[tuple[int, int, int], list[int]]):
    """The samples that each step had, by epoch, batch and rank."""


def rows_of(where: Path) -> list[Rows]:
    """Return for each attempt the steps that count: those that no later attempt did again."""
    found: list[Rows] = []
    begins = float("inf")
    for attempt in sorted({int(path.stem.partition("-")[0]) for path in where.glob("*.jsonl")}, reverse=True):
        rows = [json.loads(line) for path in where.glob(f"{attempt}-*.jsonl") for line in path.open()]
        found.append(Rows({(e, b, r): ids for e, step, b, r, ids in rows if step < begins}))
        begins = min((step for _, step, *_ in rows), default=begins)
    return found[::-1]


def problems(reference: list[Rows], attempts: list[Rows], same_ranks: bool) -> list[str]:
    """Return the samples that a run read too often or not at all, and the batches in another order."""
    found = []
    for epoch in range(EPOCHS):
        read = sorted(i for rows in attempts for (e, *_), ids in rows.items() if e == epoch for i in ids)
        missing, more = set(range(SAMPLES)) - set(read), len(read) - len(set(read))
        if missing or more:
            found.append(f"epoch {epoch}: {len(missing)} samples missing, {more} too many")
    if same_ranks and not found:
        then = {key: ids for rows in reference for key, ids in rows.items()}
        now = {key: ids for rows in attempts for key, ids in rows.items()}
        differing = [key for key in then if then[key] != now.get(key)]
        if differing:
            found.append(f"another order in {len(differing)} of {len(then)} batches, first {min(differing)}")
    return found


__all__ = ["BATCH", "Death", "Make", "Reads", "ids_in", "main", "problems", "rows_of"]
