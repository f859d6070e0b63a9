"""EfficientConvBN and ChannelsLast on two processes: the numbers of one without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import ChannelsLast, EfficientConvBN
from tests.callbacks.memory.images import Net, data, network
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes


def samples() -> TensorDataset:
    batches = data(8)
    return TensorDataset(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))


def fitted(rank: int) -> Any:
    module = Net(frozen=True)
    callbacks = [EfficientConvBN(), ChannelsLast()]
    trainer = L.Trainer(**quiet.QUIET, strategy="ddp", max_epochs=1, limit_val_batches=0, callbacks=callbacks)
    trainer.fit(module, DataLoader(samples(), 4))
    return dict(module.net.state_dict()), module.formats


def test_the_numbers_of_one_process_without_them() -> None:
    net = network()
    net[1].eval()
    net[4].eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    halves = [DataLoader(torch.utils.data.Subset(samples(), range(rank, 32, 2)), 4) for rank in range(2)]
    for parts in zip(*halves, strict=True):
        optimizer.zero_grad()
        for x, y in parts:
            (cross_entropy(net(x), y) / 2).backward()
        optimizer.step()
    for weights, formats in ranks(2, fitted):
        assert formats == [True] * 4
        for name, value in net.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-5)
