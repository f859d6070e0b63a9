"""GradientAccumulationScheduler: which epoch accumulates how much."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lightlib.callbacks import GradientAccumulationScheduler
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.callbacks.fake_trainer import FakeTrainer

AUTOMATIC = SimpleNamespace(automatic_optimization=True)


def test_schedule():
    callback, trainer = GradientAccumulationScheduler({4: 4, 2: 8}), FakeTrainer()
    callback.on_train_start(trainer, AUTOMATIC)
    used = []
    for epoch in range(6):
        trainer.progress.epoch = epoch
        callback.on_train_epoch_start(trainer, AUTOMATIC)
        used.append(trainer.accumulate_grad_batches)
    assert used == [1, 1, 8, 8, 4, 4]
    assert callback.going_to_accumulate_grad_batches()
    assert not GradientAccumulationScheduler({3: 1}).going_to_accumulate_grad_batches()


def test_resumed_within_an_epoch_and_fit_again():
    callback, trainer = GradientAccumulationScheduler({2: 8}), FakeTrainer()
    trainer.progress.epoch = 2
    callback.on_train_start(trainer, AUTOMATIC)
    assert trainer.accumulate_grad_batches == 8
    callback.on_train_start(trainer, AUTOMATIC)


@pytest.mark.parametrize("scheduling", [{}, {-1: 2}, {0: 0}])
def test_refused(scheduling):
    with pytest.raises(MisconfigurationException, match="at least one entry, epochs >= 0"):
        GradientAccumulationScheduler(scheduling)


@pytest.mark.parametrize("scheduling", [3, None, {"0": 2}, {0: 2.0}, {0: True}])
def test_wrong_type(scheduling):
    with pytest.raises(ArgumentTypeError, match="a dict from epochs to numbers of batches"):
        GradientAccumulationScheduler(scheduling)


def test_together_with_the_trainers_own():
    with pytest.raises(
        MisconfigurationException, match=r"accumulate_grad_batches=2\)(.|\n)*GradientAccumulationScheduler\(\{0: 2\}\)"
    ):
        GradientAccumulationScheduler({0: 4}).on_train_start(FakeTrainer(accumulate_grad_batches=2), AUTOMATIC)


def test_manual_optimization():
    with pytest.raises(MisconfigurationException, match="automatic_optimization = False"):
        GradientAccumulationScheduler({0: 4}).on_train_start(
            FakeTrainer(), SimpleNamespace(automatic_optimization=False)
        )
