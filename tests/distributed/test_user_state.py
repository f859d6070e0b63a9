"""State in the user's own objects on several processes: each has its own, and all are restored."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib as L
from tests.distributed.test_state import QUIET, SavesAt
from tests.distributed.user import Net, data
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes


class Keeps(Net):
    """A loss that depends on earlier losses of this process, on the epoch, and on a generator."""

    def __init__(self) -> None:
        super().__init__(optimizer="SGD")
        self.own: list[float] = []
        self.steps, self.noise = 0, torch.Generator().manual_seed(4)

    def on_train_epoch_start(self) -> None:
        self.level = 1 + self.current_epoch
        self.model[0].eval() if self.current_epoch % 2 else self.model[0].train()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.own.append(float(loss.detach()))
        self.steps += 1
        return loss * self.level * (1 + 0.1 * min(self.own) + torch.rand((), generator=self.noise))


def leg(rank: int, strategy: str, size: int, before: Path | None, after: Path, step: int) -> Any:
    """Train from one checkpoint to the next; return weights, this process's state, and the warnings."""
    torch.manual_seed(3)
    module = Keeps()
    options = {**QUIET, "strategy": strategy, "devices": size, "max_epochs": 3, "limit_train_batches": 5}
    trainer = L.Trainer(**options, callbacks=[SavesAt(step, after)])
    resumed: Any = {} if before is None else {"ckpt_path": before, "resume": {"stop": False}}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(module, DataLoader(data(64), batch_size=4, shuffle=True), **resumed)
    weights = trainer.strategy.module_state()
    return weights, (module.own, module.steps, module.level), [str(one.message) for one in said]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_each_process_gets_its_own_state_back(strategy: str, tmp_path: Path) -> None:
    at_once = ranks(2, leg, strategy, 2, None, tmp_path / "whole.ckpt", 14)
    ranks(2, leg, strategy, 2, None, tmp_path / "first.ckpt", 7)
    resumed = ranks(2, leg, strategy, 2, tmp_path / "first.ckpt", tmp_path / "second.ckpt", 14)
    assert at_once[0][1][0] != at_once[1][1][0]
    for rank in (0, 1):
        assert resumed[rank][1] == at_once[rank][1]
    weights = at_once[0][0]
    assert weights.keys() == resumed[0][0].keys()
    assert all(value.equal(resumed[0][0][name]) for name, value in weights.items())


def test_with_another_number_of_processes_what_all_had_is_restored_and_the_rest_is_named(tmp_path: Path) -> None:
    ranks(2, leg, "ddp", 2, None, tmp_path / "first.ckpt", 7)
    ((_, kept, said),) = ranks(1, leg, "auto", 1, tmp_path / "first.ckpt", tmp_path / "second.ckpt", 9)
    assert (len(kept[0]), *kept[1:]) == (2, 9, 3)
    assert any("had other values on each of the 2 processes" in text and "module.own" in text for text in said)
