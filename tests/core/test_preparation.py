"""Preparation of a run: the line about a fit that has nothing to train, and the warning about autolog."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import pytest

from lightlib import Trainer, report
from lightlib.core.preparation import warn_of_autolog
from lightlib.loggers.logger import DummyLogger
from lightlib.loggers.mlflow import MLFlowLogger
from lightlib.report import PossibleUserWarning
from tests.runs.plain import QUIET, Net, batches, quiet_trainer


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


def test_after_a_duration(lines):
    module, trainer = Net(), quiet_trainer(max_epochs=None, max_duration="7sp")
    trainer.fit(module, batches(3))
    trainer.fit(module, batches(3))
    (line,) = lines()
    assert "max_duration='7sp' and 3 training batches" in line
    assert line.endswith("Fix: fit(…, ckpt_path=…) with a Trainer that has a larger max_duration.")


def test_without_training_batches(lines):
    trainer = quiet_trainer(limit_train_batches=0)
    trainer.fit(Net(), batches(3))
    (line,) = lines()
    assert line.endswith("Fix: Trainer(limit_train_batches=1.0).")
    assert trainer.global_step == 0


def test_the_loop_of_lightning_names_what_may_be_set():
    with pytest.raises(AttributeError, match=r"`trainer\.max_epochs` and `trainer\.max_steps`, which may be set"):
        quiet_trainer().fit_loop.max_epochs = 3


class TestAutolog:
    """`mlflow.pytorch.autolog()`, with the table that mlflow 3 fills when it is called."""

    @pytest.fixture
    def settings(self, monkeypatch):
        integrations = {"pytorch": {"disable": False}}
        module = SimpleNamespace(AUTOLOGGING_INTEGRATIONS=integrations)
        monkeypatch.setitem(sys.modules, "mlflow.utils.autologging_utils", module)
        monkeypatch.setattr(report.once, "_keys", set())
        return integrations

    def test_it_warns_once_before_training(self, settings):
        trainer = quiet_trainer(max_epochs=1)
        with pytest.warns(PossibleUserWarning) as seen:
            trainer.fit(Net(), batches(1))
        (warning,) = seen
        assert str(warning.message) == (
            "mlflow.pytorch.autolog() is on, but it logs nothing of this Trainer: it changes the Trainer of "
            "`lightning`.\n  Expected: a logger of lightlib.\n"
            "  Fix: Trainer(logger=MLFlowLogger()); or call lightlib.compat.install() before autolog()."
        )
        quiet_trainer(max_epochs=1).fit(Net(), batches(1))

    @pytest.mark.parametrize("integrations", [{}, {"pytorch": {}}, {"pytorch": {"disable": True}}, {"sklearn": {}}])
    def test_not_when_it_is_off(self, settings, integrations):
        settings.clear()
        settings.update(integrations)
        quiet_trainer(max_epochs=1).fit(Net(), batches(1))

    def test_not_with_the_logger(self, settings):
        warn_of_autolog(quiet_trainer(logger=[MLFlowLogger()]))
        with pytest.warns(PossibleUserWarning, match="logs nothing"):
            warn_of_autolog(quiet_trainer(logger=DummyLogger()))

    def test_not_when_mlflow_has_changed_this_trainer(self, settings):
        class Patched(Trainer):
            @functools.wraps(Trainer.fit)
            def fit(self, *arguments, **options):
                return super().fit(*arguments, **options)

        Patched(**QUIET, max_epochs=1).fit(Net(), batches(1))
