"""A learning-rate search in several processes: the curve of the mean loss, and no trace in the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import LearningRateFinder
from lightlib.errors import MisconfigurationException
from lightlib.tuner import Tuner
from tests.processes.ranks import ranks
from tests.runs import plain
from tests.tuner.nets import QUIET, Loads, Net

pytestmark = pytest.mark.processes
STEPS, LOW, HIGH = 30, 1e-3, 10.0


def trained(strategy: str, callbacks: list[Any]) -> tuple[Net, Any]:
    torch.manual_seed(3)
    module = Net(dropout=0.5)
    trainer = L.Trainer(**QUIET, max_epochs=2, strategy=strategy, devices=2, callbacks=callbacks)
    trainer.fit(module, DataLoader(TensorDataset(*plain.samples(40)), batch_size=4, shuffle=True))
    weights = {name: value.clone() for name, value in trainer.strategy.module_state().items()}
    return module, (weights, torch.rand(3), list(module.seen))


def on_a_rank(rank: int, strategy: str) -> Any:
    _, without = trained(strategy, [])
    idle = LearningRateFinder(LOW, HIGH, 10, update_attr=False)
    _, searched = trained(strategy, [idle])
    torch.testing.assert_close(searched, without, rtol=0, atol=0)
    finder = LearningRateFinder(LOW, HIGH, STEPS)
    module, _ = trained(strategy, [finder])
    assert finder.optimal_lr is not None
    assert module.lr == finder.optimal_lr.suggestion()

    data = DataLoader(TensorDataset(*plain.samples(40)), batch_size=4)
    trainer = L.Trainer(**QUIET, max_epochs=2, strategy=strategy, devices=2)
    tuned = Net()
    curve = Tuner(trainer).lr_find(tuned, data, min_lr=LOW, max_lr=HIGH, num_training=STEPS, early_stop_threshold=None)
    assert curve is not None
    with pytest.raises(MisconfigurationException, match="a batch size in 2 processes"):
        Tuner(trainer).scale_batch_size(Loads())
    return curve.results, module.lr


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_find_what_one_loop_over_both_shards_finds(strategy: str) -> None:
    (first, lr), (second, other) = ranks(2, on_a_rank, strategy)
    assert (first, lr) == (second, other)
    x, y = plain.samples(40)
    net, losses, mean = plain.network(), [], 0.0
    optimizer = torch.optim.SGD(net.parameters(), LOW, momentum=0.9)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = LOW if step == 0 else LOW * (HIGH / LOW) ** ((step + 1) / STEPS)
        place = step % 5 * 8  # rank 0 reads the even samples, rank 1 the odd ones
        loss = cross_entropy(net(x[place : place + 8]), y[place : place + 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = 0.98 * mean + (1 - 0.98) * loss.item()
        losses.append(mean / (1 - 0.98 ** (step + 2)))
    assert first["loss"] == pytest.approx(losses, rel=1e-4)
