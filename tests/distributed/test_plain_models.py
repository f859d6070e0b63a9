"""A plain model with a dict of losses on two processes: the numbers of one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from tests.distributed.user import data
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes


class TwoLosses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Any, y: Any, mode: str) -> Any:
        scores = self.net(x)
        if mode == "predict":
            return scores
        return {"class_loss": F.cross_entropy(scores, y), "size_losses": [scores.square(), scores.abs()]}


def built() -> TwoLosses:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return TwoLosses()


def fitted(rank: int, strategy: str) -> Any:
    module = L.Module.from_model(built(), optimizer=partial(torch.optim.SGD, lr=0.1))
    trainer = L.Trainer(**quiet.QUIET, strategy=strategy, max_epochs=1)
    trainer.fit(module, DataLoader(data(32), 4), DataLoader(data(8, 2), 4))
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    return weights, {name: float(value) for name, value in trainer.callback_metrics.items()}


def both(rank: int) -> Any:
    return {strategy: fitted(rank, strategy) for strategy in ("ddp", "fsdp")}


def test_the_numbers_of_one_process() -> None:
    model = built()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    halves = [DataLoader(torch.utils.data.Subset(data(32), range(rank, 32, 2)), 4) for rank in range(2)]
    for parts in zip(*halves, strict=True):
        optimizer.zero_grad()
        for part in parts:
            losses = model(*part, mode="loss")
            terms = {"class_loss": losses["class_loss"], "size_losses": sum(x.mean() for x in losses["size_losses"])}
            (sum(terms.values()) / 2).backward()
        optimizer.step()
    zero, one = ranks(2, both)
    assert all(weights for weights, _ in zero.values())  # fsdp gathers them there alone
    for results in (zero, one):
        for strategy, (weights, metrics) in results.items():
            for name, value in model.state_dict().items() if weights else ():
                torch.testing.assert_close(weights[f"model.{name}"], value, msg=f"{strategy}: {name}")
            assert {"loss", "class_loss", "size_losses"} <= metrics.keys()
            assert metrics["loss"] == pytest.approx(metrics["class_loss"] + metrics["size_losses"], rel=1e-5)
