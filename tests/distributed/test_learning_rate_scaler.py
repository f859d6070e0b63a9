"""Learning rates scaled on two processes: the ratio counts the samples of both."""

from __future__ import annotations

import pytest

from lightlib.callbacks import LearningRateScaler
from tests.processes.ranks import ranks
from tests.runs.plain import Net, loader, quiet_trainer

pytestmark = pytest.mark.processes


def scaled(rank, strategy, **arguments):
    module = Net()
    trainer = quiet_trainer(
        max_epochs=1, limit_val_batches=0, strategy=strategy, devices=2, callbacks=[LearningRateScaler(4)], **arguments
    )
    trainer.fit(module, loader(16, 4))
    return trainer.optimizers[0].param_groups[0]["lr"], trainer.per_device_batch_size


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_both_processes_count(strategy):
    assert ranks(2, scaled, strategy) == [(0.2, 4), (0.2, 4)]


def accumulated(rank):
    return scaled(rank, "ddp", accumulate_grad_batches=2)


def test_and_accumulated_batches():
    assert ranks(2, accumulated) == [(0.4, 4), (0.4, 4)]
