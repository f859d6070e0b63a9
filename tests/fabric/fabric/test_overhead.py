"""The cost of a step with a Fabric beyond plain PyTorch, in Python calls."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import lightlib as L
from tests.core.run.loop.test_overhead import data, in_memory, per_batch
from tests.runs.plain import network


def by_hand(make):
    def run(n):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in make(n):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()

    return per_batch(run)


def in_autocast_by_hand(make):
    def run(n):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in make(n):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                scores = net(x)
            cross_entropy(scores.float(), y).backward()
            optimizer.step()

    return per_batch(run)


def by_fabric(make, loads=True, **arguments):
    fabric = L.Fabric(accelerator="cpu", devices=1, **arguments)

    def run(n):
        net = network()
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in fabric.setup_dataloaders(make(n)) if loads else make(n):
            optimizer.zero_grad()
            fabric.backward(cross_entropy(model(x), y))
            optimizer.step()

    return per_batch(run)


@pytest.mark.parametrize("loads", [False, True])
def test_a_step_on_one_device_takes_no_more_calls_than_by_hand(loads):
    assert by_fabric(data, loads) <= by_hand(data)  # dropping gradients costs less than torch's zero_grad


def test_a_step_in_a_precision_takes_no_more_calls_than_by_hand():
    assert by_fabric(data, precision="bf16-mixed") <= in_autocast_by_hand(data)


def test_data_in_memory_are_read_with_fewer_calls_than_by_hand():
    assert by_fabric(in_memory) <= by_hand(in_memory) - 30
