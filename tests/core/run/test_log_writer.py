"""The warning about step values that reach no logger, because the first epoch is too short."""

from __future__ import annotations

import pytest

from lightlib.report import PossibleUserWarning
from tests.runs.modules import LogsLoss
from tests.runs.plain import Rows, batches, quiet_trainer


def test_values_per_step_that_reach_no_logger_are_named():
    logger = Rows()
    trainer = quiet_trainer(logger=logger, log_every_n_steps=50, max_epochs=2)
    with pytest.warns(PossibleUserWarning) as caught:
        trainer.fit(LogsLoss(), batches(20))
    (message,) = (str(one.message) for one in caught)
    assert message == (
        "No logger received a value of 'loss': step values are written every log_every_n_steps=50 steps, and "
        "the first epoch has only 20.\n"
        "  Expected: an interval shorter than an epoch.\n"
        "  Fix: Trainer(log_every_n_steps=2), or self.log(…, on_epoch=True)."
    )
    assert logger.rows == []


def test_a_run_that_ends_within_its_first_epoch_says_it_too():
    with pytest.warns(PossibleUserWarning, match="the first epoch has only 3"):
        quiet_trainer(logger=Rows(), max_steps=3).fit(LogsLoss(), batches(20))


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ({}, {"log_every_n_steps": 4}),
        ({}, {"logger": False}),
        ({}, {"fast_dev_run": 2}),
        ({}, {"log_every_n_steps": 0}),
        ({"on_step": False, "on_epoch": True}, {}),
        ({"on_epoch": True}, {}),
        ({"logger": False}, {}),
    ],
)
def test_otherwise_nothing_is_said(how, settings):
    quiet_trainer(**{"logger": Rows(), "max_epochs": 2, **settings}).fit(LogsLoss(**how), batches(5))
