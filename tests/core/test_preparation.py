"""Preparation of a run: the line about a fit that has nothing to train, and its fix."""

from __future__ import annotations

import pytest

from tests.runs.plain import Net, batches, quiet_trainer


@pytest.fixture
def lines(caplog):
    caplog.set_level("INFO", logger="lightlib")

    def about():
        return [message for message in caplog.messages if message.startswith("Nothing to train")]

    return about


def test_after_all_epochs_the_fix_trains_further(lines):
    module, trainer = Net(), quiet_trainer(max_epochs=2)
    trainer.fit(module, batches(3))
    assert lines() == []
    trainer.fit(module, batches(3))
    (line,) = lines()
    assert line == (
        "Nothing to train: the run is already at epoch 2, step 6, with max_epochs=2, max_steps=inf and 3 training "
        "batches.\n  Expected: limits beyond this position.\n"
        "  Fix: set trainer.max_epochs = 4 before fit, or Trainer(max_epochs=4). A new Trainer without ckpt_path "
        "begins at epoch 0."
    )
    trainer.max_epochs = 4
    trainer.fit(module, batches(3))
    assert (trainer.current_epoch, trainer.global_step, len(lines())) == (4, 12, 1)


def test_after_all_steps(lines):
    module, trainer = Net(), quiet_trainer(max_epochs=-1, max_steps=2)
    trainer.fit(module, batches(3))
    trainer.fit(module, batches(3))
    (line,) = lines()
    assert "set trainer.max_steps = 4 before fit, or Trainer(max_steps=4)" in line
    trainer.max_steps = 4
    trainer.fit(module, batches(3))
    assert trainer.global_step == 4


def test_without_training_batches(lines):
    trainer = quiet_trainer(limit_train_batches=0)
    trainer.fit(Net(), batches(3))
    (line,) = lines()
    assert line.endswith("Fix: Trainer(limit_train_batches=1.0).")
    assert trainer.global_step == 0


def test_the_loop_of_lightning_names_what_may_be_set():
    with pytest.raises(AttributeError, match=r"`trainer\.max_epochs` and `max_steps`, which may be set"):
        quiet_trainer().fit_loop.max_epochs = 3
