"""ModelPruning over processes: the masks of one device, equal on all ranks, resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import ModelPruning
from lightlib.errors import MisconfigurationException
from lightlib.launch.watch.failure import OtherRankError
from tests.distributed.user import BATCH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.saves_at import SavesAt

pytestmark = pytest.mark.processes

EPOCHS, AMOUNT = 3, 0.2


def leg(strategy: str, how: str, saves: L.Callback | None = None, before: Path | None = None) -> Any:
    module, options = built(optimizer="SGD", lr=0.05), {**quiet.QUIET, "limit_val_batches": 0}
    prunes = ModelPruning(how, amount=AMOUNT, use_lottery_ticket_hypothesis=False, parameter_names=["weight"])
    trainer = L.Trainer(
        **options, strategy=strategy, max_epochs=EPOCHS, callbacks=[prunes, *([saves] if saves else [])]
    )
    trainer.fit(module, DataLoader(data(), BATCH // 2), ckpt_path=before)
    return {name: value.detach().clone() for name, value in module.state_dict().items() if "model" in name}


def one_leg(rank: int, strategy: str, how: str) -> Any:
    return leg(strategy, how)


def interrupted(rank: int, strategy: str, path: Path) -> Any:
    """Return the weights of an uninterrupted run, and of those that resume after these steps."""
    found = []
    for step in (5, 7, 10):
        whole = leg(strategy, "random_unstructured", SavesAt(path / f"{step}.ckpt", step))
        found.append((whole, leg(strategy, "random_unstructured", before=path / f"{step}.ckpt")))
    return found


def refusal(rank: int, strategy: str) -> str:
    try:
        leg(strategy, "l1_unstructured")
    except (MisconfigurationException, OtherRankError) as error:  # whichever this rank learns of first
        return str(error)
    return ""


def plain() -> Net:
    module = built(optimizer="SGD", lr=0.05)
    optimizer = module.configure_optimizers()
    layers = [(part, "weight") for part in module.modules() if isinstance(getattr(part, "weight", None), torch.Tensor)]
    for _ in range(EPOCHS):
        for x, y in DataLoader(data(), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module.model(x), y).backward()
            optimizer.step()
        for layer, _ in layers:
            if hasattr(layer, "weight_mask"):
                layer.weight = layer.weight_mask * layer.weight_orig.detach()
        prune.global_unstructured(layers, prune.L1Unstructured, amount=AMOUNT)
    for layer, _ in layers:
        prune.remove(layer, "weight")
    return module


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_the_weights_are_those_of_one_device(strategy: str):
    wanted, found = plain().state_dict(), ranks(2, one_leg, strategy, "l1_unstructured")
    for of_rank in found:
        assert list(of_rank) == [name for name in found[0] if "model" in name]
        for name, value in of_rank.items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
            assert torch.equal(value == 0, wanted[name] == 0), name


def test_random_masks_are_the_same_on_all_ranks():
    one, other = ranks(2, one_leg, "ddp", "random_unstructured")
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert any(bool((value == 0).any()) for value in one.values())


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_resumed_run_ends_with_the_same_bits(strategy: str, tmp_path: Path):
    for rank in ranks(2, interrupted, strategy, tmp_path):
        for whole, found in rank:
            assert list(found) == list(whole)
            assert all(torch.equal(value, whole[name]) for name, value in found.items())


@pytest.mark.parametrize("strategy", ["fsdp", "pipeline", "tensor"])
def test_strategies_that_shard_parameters_are_refused(strategy: str):
    for message in ranks(2, refusal, strategy):
        assert "ModelPruning got a " in message
        assert "Strategy that shards or copies parameters" in message
