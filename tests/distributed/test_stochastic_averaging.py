"""StochasticWeightAveraging over processes: the numbers of one device, and resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, Subset

import lightlib as L
from lightlib.callbacks import StochasticWeightAveraging
from tests.distributed.user import BATCH, WIDTH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.saves_at import SavesAt

pytestmark = pytest.mark.processes

SIZES = {"ddp": 2, "fsdp": 2, "tensor": 1, "pipeline": 1, "zero1": 2}  # processes that read different data
EPOCHS, START, RATE = 4, 2, 0.004


def module_of(normed: bool) -> Net:
    module = Net()
    module.load_state_dict(built().state_dict())
    if normed:
        module.model = nn.Sequential(module.model[0], nn.BatchNorm1d(WIDTH), *module.model[1:])
    return module


def leg(strategy: str, normed: bool, saves: L.Callback | None = None, before: Path | None = None) -> Any:
    module, options = module_of(normed), {**quiet.QUIET, "limit_val_batches": 0}
    callbacks = [StochasticWeightAveraging(RATE, START + 1, 2), *([saves] if saves else [])]
    trainer = L.Trainer(**options, strategy=strategy, max_epochs=EPOCHS, callbacks=callbacks)
    trainer.fit(module, DataLoader(data(), BATCH // SIZES[strategy]), ckpt_path=before)
    return {name: value.clone() for name, value in trainer.strategy.module_state().items()}


def one_leg(rank: int, strategy: str, normed: bool) -> Any:
    return leg(strategy, normed)


def interrupted(rank: int, strategy: str, path: Path, kind: str, steps: list[int]) -> Any:
    """Return the weights of an uninterrupted run, and of those that resume after these steps."""
    found, normed = [], strategy in ("ddp", "fsdp")
    for step in steps:
        whole = leg(strategy, normed, SavesAt(path / f"{step}.ckpt", step, format=kind))
        found.append((whole, leg(strategy, normed, before=path / f"{step}.ckpt")))
    return found


def plain() -> dict[str, torch.Tensor]:
    module = built()
    averaged, optimizer, annealing = AveragedModel(module.model), module.configure_optimizers(), None
    for epoch in range(EPOCHS):
        if epoch == START:
            annealing = SWALR(optimizer, RATE, anneal_epochs=2)
        if epoch >= START:
            averaged.update_parameters(module.model)
        for x, y in DataLoader(data(), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module.model(x), y).backward()
            optimizer.step()
        if annealing is not None:
            annealing.step()
    return {f"model.{name}": value for name, value in averaged.module.state_dict().items()}


@pytest.mark.parametrize("strategy", SIZES)
def test_the_average_is_that_of_one_device(strategy: str):
    wanted, found = plain(), ranks(2, one_leg, strategy, False)[0]
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_batch_norms_have_the_means_over_the_batches_of_all_processes(strategy: str):
    found = ranks(2, one_leg, strategy, True)[0]
    module = module_of(True)
    module.load_state_dict(found)
    shards = (Subset(data(), range(rank, len(data()), 2)) for rank in range(2))
    module.model.train()
    update_bn([batch for shard in shards for batch in DataLoader(shard, BATCH // 2)], module.model)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(found[f"model.1.{name}"], getattr(module.model[1], name), rtol=1e-5, atol=1e-6)
    assert found["model.1.num_batches_tracked"] == len(data()) // BATCH


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("ddp", "file"), ("fsdp", "file"), ("fsdp", "directory"), ("pipeline", "directory"), ("tensor", "file")],
)
def test_a_resumed_run_ends_with_the_same_bits(strategy: str, kind: str, tmp_path: Path):
    for rank in ranks(2, interrupted, strategy, tmp_path, kind, [10, 17, 26]):
        for whole, found in rank:
            assert list(found) == list(whole)
            assert all(torch.equal(value, whole[name]) for name, value in found.items())
