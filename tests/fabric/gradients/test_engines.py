"""Strategies with an engine that runs the backward pass: one that counts its calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.fabric.gradients import backward
from lightlib.fabric.placement import Placement
from lightlib.strategies.single import SingleDeviceStrategy


class Engine:
    """Has the calls of a strategy that `Placement` makes, and a backward of its own."""

    def __init__(self, strategy):
        self.strategy, self.losses, self.synced = strategy, [], []

    def place(self, module, steps):
        self.steps = steps

    def forward_backward(self, batch, batch_idx, backward, sync):
        self.synced.append(sync)
        output = self.steps["training_step"](batch, batch_idx)
        backward(output, by=self.losses.append)
        return output

    def describe(self):
        return "engine"


def placed():
    module = nn.Linear(1, 1)
    placement = Placement(Engine(SingleDeviceStrategy()), module)
    return placement, placement.train(module, (torch.ones(1, 1),), {}).sum()


def test_the_engine_gets_the_loss():
    placement, loss = placed()
    backward([placement], None, loss, (), {}, None)
    assert placement.strategy.losses == [loss]
    assert placement.module.weight.grad is None
    assert placement.strategy.synced == [True]


def test_with_several_modules_the_model_is_needed():
    (one, loss), (other, _) = placed(), placed()
    with pytest.raises(
        MisconfigurationException, match=r"fabric.backward got no model, and 2 modules are set up"
    ) as raised:
        backward([one, other], None, loss, (), {}, None)
    assert "\n  Fix: fabric.backward(loss, model=model)" in str(raised.value)


def test_an_engine_takes_the_loss_alone():
    placement, loss = placed()
    with pytest.raises(MisconfigurationException, match=r"got further arguments \(retain_graph\)"):
        backward([placement], None, loss, (), {"retain_graph": True}, None)


def test_the_model_of_another_fabric():
    fabric = L.Fabric(accelerator="cpu", devices=1)
    model = fabric.setup(nn.Linear(1, 1))
    fabric.backward(model(torch.ones(1, 1)).sum(), model=model)
    assert model.weight.grad is not None
