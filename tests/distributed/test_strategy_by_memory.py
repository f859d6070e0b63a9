"""`strategy="auto"` on two processes with devices of a pretended memory: the numbers of one process."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

import lightlib as L
from lightlib.accelerators import CPUAccelerator
from tests.distributed.user import data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.plain import Net

pytestmark = pytest.mark.processes


def built() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))  # 112 parameters: 448 bytes


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def fitted(memory: int | None) -> Any:
    handler, log = Lines(), logging.getLogger("lightlib")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    CPUAccelerator.memory = lambda self, device: memory
    try:
        module = Net(net=built())
        trainer = L.Trainer(**quiet.QUIET, strategy="auto", devices=2, max_epochs=1, activation_offload=True)
        before = type(trainer.strategy).__name__
        trainer.fit(module, DataLoader(data(32), 4))
    finally:
        log.removeHandler(handler)
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    chosen = [line for line in handler.lines if line.startswith("strategy=")]
    assert [transform.argument for transform in trainer.strategy.transforms] == ["activation_offload"]
    return before, type(trainer.strategy).__name__, weights, chosen


def all_three(rank: int) -> Any:
    return [fitted(memory) for memory in (None, 1000, 900)]


def test_the_strategy_and_the_numbers() -> None:
    model = built()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    halves = [DataLoader(Subset(data(32), range(rank, 32, 2)), 4) for rank in range(2)]
    for parts in zip(*halves, strict=True):
        optimizer.zero_grad()
        for x, y in parts:
            (nn.functional.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
    for rank, results in enumerate(ranks(2, all_three)):
        assert [before for before, *_ in results] == ["DDPStrategy"] * 3
        assert [after for _, after, *_ in results] == ["DDPStrategy", "DDPStrategy", "FSDPStrategy"]
        sentence = "parameters, gradients and optimizer state need 896 B"
        beyond = "90 % of the 900 B of a device; sharded over 2 devices they need 448 B on each"
        expected = [
            [],
            [f'strategy="auto" is ddp: {sentence}, and a device has 1.00 kB.'],
            [f'strategy="auto" is fsdp: {sentence}, more than {beyond}.'],
        ]
        assert [lines for *_, lines in results] == (expected if rank == 0 else [[], [], []])
        for _, _, weights, _ in results:
            for name, value in weights.items():
                torch.testing.assert_close(value, model.state_dict()[name.removeprefix("net.")])
