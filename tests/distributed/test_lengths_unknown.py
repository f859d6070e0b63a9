"""Orders and data sets that draw as they are read, without a length, on two ranks: resumed exactly."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from lightlib.data.combined import CombinedLoader
from tests.data.reads import LateOrder, Noise, OwnNoise, UnsizedOrder
from tests.processes.ranks import ranks
from tests.runs.modules import Regression
from tests.runs.resumable import trainer_for

pytestmark = pytest.mark.processes

ORDERS = {
    "late": lambda n: DataLoader(Noise(n), 4, sampler=UnsizedOrder(n, late=True)),
    "at once": lambda n: DataLoader(Noise(n), 4, sampler=UnsizedOrder(n, late=False)),
    "with a length": lambda n: DataLoader(Noise(n), 4, sampler=LateOrder(n)),
    "generators of the data set": lambda n: DataLoader(Uneven(n), 4, shuffle=True),
    "with workers": lambda n: DataLoader(Noise(n), 4, sampler=UnsizedOrder(n, late=True), num_workers=1),
    "several": lambda n: CombinedLoader(
        [DataLoader(Noise(22), 4, shuffle=True), DataLoader(Noise(n), 4, sampler=UnsizedOrder(n, late=True))],
        "max_size_cycle",
    ),
}


class Uneven(OwnNoise):
    """Its generators are in another state on each rank."""

    def __getitem__(self, index):
        for _ in range(torch.distributed.get_rank()):
            super().__getitem__(index)
        return super().__getitem__(index)


class Reads(Regression):
    """Keeps the samples of each batch, and random numbers of its own."""

    not_in_checkpoint = ("seen", "path", "saves")

    def __init__(self, path: Path, saves: bool) -> None:
        super().__init__()
        self.path, self.saves, self.seen = path, saves, []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        parts = batch if isinstance(batch, list) else [batch]
        self.seen.append(([part.tolist() for part in parts], float(torch.rand(())), random.random()))
        return self.loss(parts[0][:, :1].float())

    def on_train_batch_end(self, *args: Any) -> None:
        if self.saves:
            self.trainer.save_checkpoint(self.path / f"{len(self.seen)}.ckpt")


def read(path: Path, kind: str, at: int | None = None) -> list[Any]:
    """Train for two epochs, and save after each batch; or resume after batch number `at`."""
    seed = 11 if at is None else 5
    for seeds in (random.seed, numpy.random.seed, torch.manual_seed):
        seeds(seed)
    module = Reads(path, saves=at is None)
    trainer = trainer_for(strategy="ddp", max_epochs=2, limit_val_batches=0, num_sanity_val_steps=0)
    trainer.fit(module, ORDERS[kind](38), ckpt_path=None if at is None else path / f"{at}.ckpt")
    return module.seen


def whole_and_resumed(rank: int, folder: Path) -> dict[str, Any]:
    found = {}
    for kind in ORDERS:
        path = folder / kind
        path.mkdir(exist_ok=True)
        found[kind] = read(path, kind), {at: read(path, kind, at) for at in (1, 4, 5, 6)}
    return found


def test_a_resumed_run_reads_the_same_on_each_rank(tmp_path: Path):
    """Five batches per epoch and rank: after the first, before the last, at the end, and after the next first one."""
    for rank, found in enumerate(ranks(2, whole_and_resumed, tmp_path)):
        assert list(found) == list(ORDERS)
        for kind, (whole, resumed) in found.items():
            assert len(whole) == 10, (rank, kind)
            for at, rest in resumed.items():
                assert rest == whole[at:], (rank, kind, at)
