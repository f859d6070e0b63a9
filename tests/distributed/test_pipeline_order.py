"""Order of forwards and backwards of each pipeline schedule, and activations alive meanwhile."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.strategies import MeshStrategy
from lightlib.strategies.pipeline.pipeline_axis import Pipeline
from tests.processes.ranks import ranks
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes

# For 2 processes and 4 micro-batches. GPipe (Huang et al.) computes all forwards first. 1F1B (PipeDream-flush) makes
# size - rank - 1 forwards ahead, then one of each. Interleaved 1F1B (Megatron-LM) with two stages on each process makes
# 2 * (size - rank - 1) + (stages - 1) * size ahead.
ORDERS = {
    "gpipe": ["FFFFBBBB", "FFFFBBBB"],
    "1f1b": ["FFBFBFBB", "FBFBFBFB"],
    "interleaved": ["FFFFFBFBFBFBBBBB", "FFFBFBFBFBFBFBBB"],
}
ALIVE = {"gpipe": [4, 4], "1f1b": [2, 1], "interleaved": [5, 3]}  # the forwards ahead, and the one that is computed


class Saved:
    """An activation that autograd saves; it lives until the backward that needs it."""

    alive: ClassVar[weakref.WeakSet[Saved]] = weakref.WeakSet()
    most = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        Saved.alive.add(self)
        Saved.most = max(Saved.most, len(Saved.alive))


class Mark(torch.autograd.Function):
    """The identity, which notes its forwards and backwards."""

    events: ClassVar[list[str]] = []

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Mark.events.append("F")
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Mark.events.append("B")
        return gradient


class Marked(nn.Module):
    """A marked layer with a tanh, which saves one activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Mark.apply(self.layer(x))
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            return torch.tanh(x)


class Net(Regression):
    def __init__(self, stages: int) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(*(Marked() for _ in range(stages))))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        Mark.events, Saved.most = [], 0  # the first batch also learns the shapes


def run(rank: int, schedule: str) -> tuple[str, int]:
    warnings.simplefilter("ignore")
    net = Net(4 if schedule == "interleaved" else 2)
    strategy = MeshStrategy(pipeline=Pipeline(2, schedule=schedule, microbatches=4))
    trainer = L.Trainer(**QUIET, strategy=strategy, devices=2, max_epochs=1)
    trainer.fit(net, DataLoader(TensorDataset(torch.randn(16, 4)), 8))
    return "".join(Mark.events), Saved.most


@pytest.mark.parametrize("schedule", ORDERS)
def test_forwards_and_backwards_are_in_the_order_of_the_schedule(schedule: str) -> None:
    found = ranks(2, run, schedule)
    assert [events for events, _ in found] == ORDERS[schedule]
    assert [most for _, most in found] == ALIVE[schedule]
