"""A small convolutional network, its batches, and the loop to compare with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightlib.core.module.module import Module
from tests.runs import plain
from tests.runs.plain import quiet_trainer


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False),
            nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(6), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip
        for number in (1, 4):
            net[number].running_mean.normal_()
            net[number].running_var.uniform_(0.5, 2.0)
    return net


def data(n: int = 6) -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 4, 3, 8, 8, generator=generator)
    return list(zip(x, torch.randint(0, 3, (n, 4), generator=generator), strict=True))


class Net(plain.Net):
    """`frozen`: its batch norms are in evaluation mode while it trains."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__(plain.momentum, net=network())
        self.frozen = frozen
        self.formats: list[bool] = []

    def on_train_epoch_start(self) -> None:
        if self.frozen:
            self.net[1].eval()
            self.net[4].eval()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.formats.append(batch[0].is_contiguous(memory_format=torch.channels_last))
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch))


def fit(module: Module, path: Any = None, **arguments: Any) -> Any:
    trainer = quiet_trainer(**{"limit_val_batches": 0, **arguments})
    trainer.fit(module, data(), data(2), ckpt_path=path)
    return trainer


def by_hand(frozen: bool = False, channels_last: bool = False) -> nn.Sequential:
    kind = torch.channels_last if channels_last else torch.contiguous_format
    net = network().to(memory_format=kind)
    if frozen:
        net[1].eval()
        net[4].eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, y in data():
        optimizer.zero_grad()
        cross_entropy(net(x.contiguous(memory_format=kind)), y).backward()
        optimizer.step()
    return net
