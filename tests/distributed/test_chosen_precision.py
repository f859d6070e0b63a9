"""Modules that stay in float32 on two processes: the numbers of a loop by hand over both shards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lightlib as L
from lightlib.precision import HalfPrecision, MixedPrecision
from tests.distributed.user import data
from tests.processes.ranks import ranks
from tests.runs import plain, quiet
from tests.runs.plain import with_methods

pytestmark = pytest.mark.processes
HALF = torch.bfloat16


def built() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8))


def fitted(rank: int) -> Any:
    found = []

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x).float(), y)

    for precision in (
        HalfPrecision("bf16-true", inputs_to_half=[0], float32_modules=["net.1"]),
        MixedPrecision("bf16-mixed", float32_modules=[nn.LayerNorm]),
    ):
        module = with_methods(plain.Net(net=built()), loss)
        trainer = L.Trainer(**quiet.QUIET, strategy="ddp", max_epochs=1, plugins=precision)
        trainer.fit(module, torch.utils.data.DataLoader(data(32), 4))
        found.append({name: value.clone() for name, value in module.net.state_dict().items()})
    return found


def by_hand(true: bool) -> nn.Sequential:
    net = built()
    if true:
        net[0].to(HALF)
        net[2].to(HALF)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    halves = [torch.utils.data.DataLoader(torch.utils.data.Subset(data(32), range(r, 32, 2)), 4) for r in range(2)]
    for parts in zip(*halves, strict=True):
        gradients: list[Any] = []
        for x, y in parts:
            optimizer.zero_grad()
            with torch.autocast("cpu", HALF, enabled=not true):
                h = net[0](x.to(HALF) if true else x)
                with torch.autocast("cpu", enabled=False):
                    h = net[1](h.float())
                h = net[2](h.to(HALF) if true else h)
                nn.functional.cross_entropy(h.float(), y).backward()
            gradients.append([parameter.grad for parameter in net.parameters()])
        for parameter, one, two in zip(net.parameters(), *gradients, strict=True):
            parameter.grad = one / 2 + two / 2
        optimizer.step()
    return net


def test_the_numbers_of_a_loop_by_hand() -> None:
    zero, one = ranks(2, fitted)
    for results in (zero, one):
        for true, weights in zip((True, False), results, strict=True):
            for name, value in by_hand(true).state_dict().items():
                assert weights[name].dtype is value.dtype
                torch.testing.assert_close(weights[name], value, rtol=1e-2, atol=1e-3 if true else 1e-5)
