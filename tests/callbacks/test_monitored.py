"""Warnings about monitored metrics that are not logged, as early as possible."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.callbacks.monitored import monitors_of, warn_for_unlogged
from lightlib.report import PossibleUserWarning
from tests.runs.plain import batches, quiet_trainer, with_methods


def said(monitors, logged):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_for_unlogged(monitors, logged)
    return [str(one.message).splitlines()[0] for one in caught]


@pytest.mark.parametrize("monitor", ["val_los", "val_accuracy", "valid/loss", "Val-Loss", "accurracy"])
def test_what_should_have_been_logged_by_the_sanity_check_is_missed(monitor):
    (message,) = said([("EarlyStopping", monitor)], ["val_loss", "accuracy"])
    assert message.startswith(f"EarlyStopping(monitor={monitor!r}): the sanity check logged no such metric.")


@pytest.mark.parametrize("monitor", ["val_loss", "train_loss", "loss", "value_of_policy", "lr-SGD"])
def test_what_training_may_log_is_not(monitor):
    assert said([("EarlyStopping", monitor)], ["val_loss", "accuracy"]) == []


def test_nothing_is_missed_when_the_sanity_check_logs_nothing():
    assert said([("EarlyStopping", "val_loss")], []) == []


def test_who_reads_a_metric():
    plateau = SimpleNamespace(scheduler=torch.nn.Identity(), monitor="val_loss", reduce_on_plateau=True)
    other = SimpleNamespace(scheduler=torch.nn.Identity(), monitor="val_loss", reduce_on_plateau=False)
    callbacks = [ModelCheckpoint(), ModelCheckpoint(monitor="a"), EarlyStopping("b")]
    assert monitors_of(callbacks, [plateau, other]) == [
        ("ModelCheckpoint", "a"),
        ("EarlyStopping", "b"),
        ("Identity", "val_loss"),
    ]


def test_a_run_says_it_after_its_sanity_check():
    trainer = quiet_trainer(callbacks=EarlyStopping("val_los", strict=False), num_sanity_val_steps=1, max_epochs=1)
    with pytest.warns(PossibleUserWarning) as caught:
        trainer.fit(with_methods(validation_step=lambda self, *_: self.log("val_loss", 1.0)), batches(1), batches(1))
    messages = [str(one.message) for one in caught]
    assert "the sanity check logged no such metric. Did you mean 'val_loss'?" in messages[0]
    assert "  Fix: log it with self.log('val_los', …), or change `monitor`." in messages[0]
    assert "this metric was never logged" in messages[1]  # at the end of the epoch
