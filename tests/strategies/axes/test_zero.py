"""The state of an optimizer, sharded over replicas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightlib.strategies.axes.zero import shard_state
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes


def shared(rank):
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    groups = [{"params": layers[0].parameters(), "lr": 0.1}, {"params": layers[1:].parameters(), "weight_decay": 0.3}]
    original = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9), eps=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(original, 1, 0.5)
    optimizer = shard_state(original, torch.distributed.group.WORLD)
    for step in range(3):
        optimizer.zero_grad()
        layers(torch.full((4, 8), step + 1.0)).square().mean().backward()
        optimizer.step()
        schedule.step()
    rates = [group["lr"] for group in optimizer.param_groups]
    held = sum(state["exp_avg"].numel() for state in optimizer.optim.state.values())
    return [p.detach() for p in layers.parameters()], rates, held


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_numbers_options_and_schedules_are_those_of_the_optimizer():
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    groups = [{"params": layers[0].parameters(), "lr": 0.1}, {"params": layers[1:].parameters(), "weight_decay": 0.3}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9), eps=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(3):
        optimizer.zero_grad()
        layers(torch.full((4, 8), step + 1.0)).square().mean().backward()
        optimizer.step()
        schedule.step()
    found = ranks(2, shared)
    for weights, rates, _ in found:
        assert rates == pytest.approx([0.0125, 0.00125])
        for mine, other in zip(weights, layers.parameters(), strict=True):
            torch.testing.assert_close(mine, other.detach())
    total = sum(p.numel() for p in layers.parameters())
    assert sum(held for *_, held in found) == total
    assert all(held < total for *_, held in found)
