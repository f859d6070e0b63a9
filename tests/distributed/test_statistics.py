"""SyncBuffers and PreciseBN over processes: statistics of the data of all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, Subset

import lightlib as L
from lightlib.callbacks import PreciseBN, SyncBuffers
from lightlib.strategies import DDPStrategy
from tests.distributed.user import BATCH, WIDTH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet

pytestmark = pytest.mark.processes


class Before(L.Callback):
    """Notes the running mean before other callbacks change it."""

    priority = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.mean = pl_module.model[1].running_mean.clone()


def normed() -> Net:
    module = built()
    module.model = nn.Sequential(module.model[0], nn.BatchNorm1d(WIDTH), *module.model[1:])
    return module


def leg(rank: int, strategy: str, kind: str) -> Any:
    module, before = normed(), Before()
    callbacks = [before, SyncBuffers() if kind == "sync" else PreciseBN(None)]
    chosen: Any = DDPStrategy(broadcast_buffers=False) if strategy == "ddp" else strategy
    options = {**quiet.QUIET, "limit_val_batches": 0}
    trainer = L.Trainer(**options, strategy=chosen, devices=2, max_epochs=1, callbacks=callbacks)
    trainer.fit(module, DataLoader(data(), BATCH // 2))
    state = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    return before.mean, module.model[1].running_mean.clone(), state


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_buffers_become_their_mean_on_all_ranks(strategy: str):
    (one, found, _), (other, also, _) = ranks(2, leg, strategy, "sync")
    assert not torch.equal(one, other)
    assert torch.equal(found, also)
    torch.testing.assert_close(found, (one + other) / 2)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_precise_statistics_are_those_of_all_batches(strategy: str):
    (_, found, state), (_, also, _) = ranks(2, leg, strategy, "precise")
    assert torch.equal(found, also)
    module = normed()
    module.load_state_dict(state)
    shards = (Subset(data(), range(rank, len(data()), 2)) for rank in range(2))
    module.model.train()
    update_bn([batch for shard in shards for batch in DataLoader(shard, BATCH // 2)], module.model)
    torch.testing.assert_close(found, module.model[1].running_mean, rtol=1e-5, atol=1e-6)
