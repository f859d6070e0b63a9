"""First values by rules for a module that is built without memory and sharded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.strategies import FSDPStrategy
from tests.distributed.user import data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.plain import Net

pytestmark = pytest.mark.processes
RULES = [
    {"type": "kaiming", "layer": "Linear"},
    {"type": "trunc_normal", "std": 0.02, "name": "net.4", "bias": None},
    {"type": "Constant", "val": 0.5, "layer": "LayerNorm", "bias": 0.1},
    {"type": "Normal", "override": {"type": "Caffe2Xavier", "name": "net.2", "bias_prob": 0.01}},
]


class Built(Net):
    """Builds its layers in configure_model, and sets their values by rules."""

    def __init__(self) -> None:
        super().__init__()
        del self.net
        torch.manual_seed(7)

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            layers = nn.Linear(4, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8)
            self.net = nn.Sequential(*layers)
            L.init_weights(self, RULES)


class FirstWeights(L.Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.state = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
        self.sharded = all(p.to_local().numel() < p.numel() for p in pl_module.net[0].parameters())


def run(rank: int) -> Any:
    found = []
    for lazily in (True, False):
        first = FirstWeights()
        trainer = L.Trainer(**quiet.QUIET, strategy=FSDPStrategy(meta=lazily), max_epochs=1, callbacks=[first])
        trainer.fit(Built(), DataLoader(data(16), 4))
        found.append((first.state, first.sharded, trainer.strategy.module_state()))
    return found


def test_they_are_those_of_a_module_with_memory() -> None:
    (lazy, eager), (other, _) = ranks(2, run)
    plain = Built()
    plain.configure_model()
    assert lazy[1]
    assert other[1]
    assert set(lazy[0]) == set(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(lazy[0][name], value), name
        assert torch.equal(lazy[2][name], eager[2][name]), name
