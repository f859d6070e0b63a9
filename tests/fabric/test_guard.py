"""Calls of the original module after fabric.setup: a warning, and no false alarm."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lightlib
from tests.processes.ranks import ranks

TEXT = "The Net that was given to fabric.setup was called itself, with gradients"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

    def loss(self, x):
        return self(x).square().mean()


class Manual(lightlib.Module, Net):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    forward = Net.forward


def original(model, user, x):
    return user(x).mean()


def wrapped(model, user, x):
    return model(x).mean()


def marked(model, user, x):
    model.mark_forward_method("loss")
    return model.loss(x)


def without_gradients(model, user, x):
    with torch.no_grad():
        user(x)
    return model(x).mean()


def checkpointed(model, user, x):
    return checkpoint(model, x, use_reentrant=False).mean()


def checkpointed_inside(model, user, x):
    user.loss = lambda x: checkpoint(user, x, use_reentrant=False).mean()
    model._marked.add("loss")
    return model.loss(x)


def trained(rank, kind, call, options, compiled=False):
    """Train two steps; return the warnings, and whether the weights are the same on both ranks."""
    fabric = lightlib.Fabric(accelerator="cpu", **options)
    fabric.launch()
    user = kind()
    given = torch.compile(user, backend="eager") if compiled else user
    model, optimizer = fabric.setup(given, torch.optim.SGD(user.parameters(), 0.1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            fabric.backward(call(model, given, torch.ones(4, 2) * (fabric.global_rank + 1)))
            optimizer.step()
            optimizer.zero_grad()
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in user.parameters()]
    equal = all(bool((fabric.all_gather(p.detach()) == p.detach()).all()) for p in weights)
    return [str(one.message) for one in caught if TEXT in str(one.message)], equal


def on_two(rank, strategy, cases):
    return [trained(rank, *case, {"devices": 2, "strategy": strategy}) for case in cases]


@pytest.mark.processes
def test_the_original_is_warned_about_once():
    cases = [(Net, original), (Net, wrapped)]
    (first, second), other = ranks(2, on_two, "ddp", cases)
    assert len(first[0]) == 1
    assert "Expected: calls of the module that fabric.setup returned." in first[0][0]
    assert not first[1]  # so the weights differ
    assert second == ([], True)
    assert [equal for _, equal in other] == [False, True]


@pytest.mark.processes
def test_calls_through_the_strategy_are_not():
    cases = [(Net, call) for call in (marked, without_gradients, checkpointed, checkpointed_inside)]
    assert ranks(2, on_two, "ddp", [*cases, (Manual, original)]) == [[([], True)] * 5] * 2


@pytest.mark.processes
def test_a_sharded_module_reduces_by_itself():
    assert ranks(2, on_two, "fsdp", [(Net, original), (Net, wrapped)]) == [[([], True)] * 2] * 2


def test_one_process():
    assert trained(0, Net, original, {"devices": 1}) == ([], True)


def compiled(rank):
    return trained(rank, Net, wrapped, {"devices": 2, "strategy": "ddp"}, compiled=True)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_module_through_the_strategy():
    assert ranks(2, compiled) == [([], True)] * 2
