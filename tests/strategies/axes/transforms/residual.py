"""A network of equal blocks, and a plain loop that trains it."""

from __future__ import annotations

import weakref

import torch
from torch import nn


class Block(nn.Module):
    """A residual network, which notes whether the memory of its hidden values is still there after its forward."""

    not_in_checkpoint = ("hidden",)

    def __init__(self, dropout):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(8, 32), nn.Dropout(dropout), nn.Linear(32, 8)
        self.__dict__["hidden"] = []

    def forward(self, x):
        hidden = self.up(x).relu()
        if not torch.compiler.is_compiling():
            self.hidden.append(weakref.ref(hidden.untyped_storage()))
        return x + self.down(self.drop(hidden))


def network(depth=4, dropout=0.3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 8), *(Block(dropout) for _ in range(depth)), nn.Linear(8, 1))


def data(batches=4):
    return list(torch.randn(batches, 16, 8, generator=torch.Generator().manual_seed(2)))


def by_hand(epochs=1, dropout=0.3):
    net = network(dropout=dropout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(3)
    for x in data() * epochs:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return net
