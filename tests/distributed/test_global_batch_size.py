"""`Trainer(global_batch_size=…)` on two processes: fewer samples than processes, and a rest."""

# ruff: noqa: RUF001  a multiplication sign is meant

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from tests.processes.ranks import ranks
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes


class Sizes(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.steps: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.sizes.append(len(batch[0]))
        return self.loss(batch)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.steps.append(sum(self.sizes) - sum(self.steps))


def fitted(rank: int, size: int, batch: int, samples: int) -> Any:
    """Return the error, or the samples of each batch and of each step of this process, with the warnings."""
    module, loader = Sizes(), DataLoader(TensorDataset(torch.ones(samples, 1)), batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer = L.Trainer(**QUIET, strategy="ddp", devices=2, max_epochs=1, global_batch_size=size)
            trainer.fit(module, loader)
        except Exception as error:  # noqa: BLE001  what is tested
            return str(error), module.sizes
    return module.sizes, module.steps, [str(one.message) for one in caught if "Global batch" in str(one.message)]


def test_fewer_samples_than_processes() -> None:
    for text, sizes in ranks(2, fitted, 1, 1, 8):
        assert "global_batch_size=1 is less than the 2 processes" in text
        assert sizes == []  # before training


def test_one_sample_for_each_process() -> None:
    for sizes, steps, said in ranks(2, fitted, 2, 4, 8):
        assert (sizes, steps, said) == ([1] * 4, [1] * 4, [])


def test_a_rest_is_rounded_on_both() -> None:
    found = ranks(2, fitted, 65, 32, 128)
    assert [(sizes, steps) for sizes, steps, _ in found] == [([32, 32], [32, 32])] * 2
    assert any("Global batch 64 = 2 processes × 32 × 1 accumulated; 65 was requested." in one for one in found[0][2])
