"""Groups of parameters under strategies: the numbers of one device, and resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.optim import param_groups
from tests.distributed.user import BATCH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.plain import with_methods

pytestmark = pytest.mark.processes

SIZES = {"ddp": 2, "fsdp": 2, "tensor": 1, "pipeline": 1, "zero1": 2}  # processes that read different data
EPOCHS = 2


def grouped(module: torch.nn.Module) -> torch.optim.Optimizer:
    # the patterns are in the first and the last stage of a pipeline
    rules = {"model.0": {"lr_mult": 0.5}, "model.6.*": {"lr_mult": 2.0, "betas": (0.8, 0.9)}}
    return torch.optim.AdamW(param_groups(module, 1e-2, 0.3, rules=rules, layers=["model"], layer_decay=0.8))


class Saves(L.Callback):
    """Writes a checkpoint in the middle of an epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == 4:
            trainer.save_checkpoint(self.path)


def leg(strategy: str, saves: L.Callback | None = None, before: Path | None = None) -> Any:
    module = with_methods(Net, configure_optimizers=grouped)
    module.load_state_dict(built().state_dict())
    callbacks = [] if saves is None else [saves]
    trainer = L.Trainer(
        **quiet.QUIET | {"limit_val_batches": 0}, strategy=strategy, max_epochs=EPOCHS, callbacks=callbacks
    )
    trainer.fit(module, DataLoader(data(), BATCH // SIZES[strategy], shuffle=False), ckpt_path=before)
    return {name: value.clone() for name, value in trainer.strategy.module_state().items()}


def two_legs(rank: int, strategy: str, path: Path) -> Any:
    return leg(strategy, Saves(path)), leg(strategy, before=path)


@pytest.mark.parametrize("strategy", SIZES)
def test_the_numbers_of_one_device_also_when_resumed(strategy: str, tmp_path: Path):
    module = built()
    optimizer = grouped(module)
    for _ in range(EPOCHS):
        for x, y in DataLoader(data(), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module.model(x), y).backward()
            optimizer.step()
    found = ranks(2, two_legs, strategy, tmp_path / "a.ckpt")
    for name, value in module.model.state_dict().items():
        torch.testing.assert_close(found[0][0][f"model.{name}"], value, rtol=1e-4, atol=1e-6)
    for weights, resumed in found:
        assert weights.keys() == resumed.keys()
        assert all(torch.equal(value, resumed[name]) for name, value in weights.items())
