"""Checkpoints without frozen weights, under every strategy: the numbers of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib as L
from lightlib import checkpoint
from lightlib.callbacks import ModelCheckpoint
from lightlib.strategies import MeshStrategy
from tests.distributed.user import BATCH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes

FROZEN = ("model.0.", "model.1.", "model.3.up.")
QUIET = {key: value for key, value in quiet.QUIET.items() if key != "enable_checkpointing"} | {"logger": False}


def adapted() -> Net:
    net = built(optimizer="SGD", lr=0.1)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not name.startswith(FROZEN))
    return net


def fit(folder: str, epochs: int, strategy: str, size: int, kind: str, path: str | None) -> tuple[L.Trainer, Net]:
    net = adapted()
    saver = ModelCheckpoint(folder, "{epoch}", save="trainable", save_top_k=-1, format=kind)
    chosen = MeshStrategy(pipeline=2, shard=2) if strategy == "pipeline, fsdp" else strategy
    trainer = L.Trainer(**QUIET, strategy=chosen, devices=size, max_epochs=epochs, callbacks=[saver])
    trainer.fit(net, DataLoader(data(), BATCH // (1 if strategy in ("tensor", "pipeline") else 2)), ckpt_path=path)
    return trainer, net


def in_two_runs(rank: int, folder: str, strategy: str, size: int, kind: str) -> tuple[dict[str, Any], list[str]]:
    fit(folder, 1, strategy, size, kind, None)
    trainer, net = fit(folder, 2, strategy, size, kind, f"{folder}/epoch=0.ckpt")
    held = checkpoint.load(f"{folder}/epoch=1.ckpt")["state_dict"]
    trainer.validate(net, DataLoader(data(), BATCH), ckpt_path=f"{folder}/epoch=1.ckpt", verbose=False)
    return trainer.strategy.module_state(), sorted(held)


def by_hand() -> dict[str, torch.Tensor]:
    net = adapted()
    optimizer = net.configure_optimizers()
    for _ in range(2):
        for x, y in DataLoader(data(), BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net.model(x), y).backward()
            optimizer.step()
    return net.state_dict()


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize(
    ("strategy", "size"), [("ddp", 2), ("fsdp", 2), ("tensor", 2), ("pipeline", 2), ("hsdp", 2), ("pipeline, fsdp", 4)]
)
def test_the_numbers_of_one_device(tmp_path: Path, strategy: str, size: int, kind: str):
    found, held = ranks(size, in_two_runs, str(tmp_path), strategy, size, kind)[0]
    wanted = by_hand()
    assert held == sorted(name for name in wanted if not name.startswith(FROZEN))
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, atol=1e-6), name
    net = adapted()  # another number of processes reads it too
    L.Trainer(**QUIET).validate(net, DataLoader(data(), BATCH), ckpt_path=tmp_path / "epoch=1.ckpt", verbose=False)
    assert all(torch.equal(value, found[name]) for name, value in net.state_dict().items())
