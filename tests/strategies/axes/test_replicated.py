"""A pipeline with a stage of frozen layers, where the optimizer has no parameters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from tests.processes.ranks import ranks
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes
FROZEN = {"first": slice(0, 4), "last": slice(4, 7)}


def network(frozen: str) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(4, 4) if number % 2 == 0 else nn.Tanh() for number in range(7)))
    net[FROZEN[frozen]].requires_grad_(False)
    return net


def data() -> DataLoader[Any]:
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.flip(1).sin()), 8)


def trainable(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], 1e-2, eps=1e-4)


def fitted(frozen: str, precision: Any, epochs: int, folder: Path, resumes: bool = False) -> dict[str, torch.Tensor]:
    trainer = L.Trainer(
        **QUIET, strategy="pipeline", devices=2, max_epochs=epochs, precision=precision, gradient_clip_val=0.1
    )
    trainer.fit(Regression(network(frozen), trainable), data(), ckpt_path=str(folder / "one.ckpt") if resumes else None)
    trainer.save_checkpoint(folder / "one.ckpt")
    return {name: value.clone() for name, value in trainer.strategy.module_state().items()}


def stopped_and_resumed(rank: int, frozen: str, precision: Any, folder: Path) -> list[dict[str, torch.Tensor]]:
    (folder / "through").mkdir(exist_ok=True)
    through = fitted(frozen, precision, 2, folder / "through")
    fitted(frozen, precision, 1, folder)
    return [through, fitted(frozen, precision, 2, folder, resumes=True)]


@pytest.mark.filterwarnings("ignore:.*computes in float16 on the CPU")
@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 1e-5), ("16-mixed", 2e-3)])
def test_a_stage_of_frozen_layers(frozen: str, precision: Any, tolerance: float, tmp_path: Path):
    net = network(frozen)
    optimizer = trainable(net.parameters())
    for x, y in [*data()] * 2:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    through, resumed = ranks(2, stopped_and_resumed, frozen, precision, tmp_path)[0]
    for name, value in net.state_dict().items():
        torch.testing.assert_close(through[f"net.{name}"], value, rtol=tolerance, atol=tolerance)
        assert torch.equal(through[f"net.{name}"], resumed[f"net.{name}"])
