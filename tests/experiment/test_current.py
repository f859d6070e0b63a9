"""Outside of an experiment, reports of a program are printed."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from lightlib.experiment import current


def test_outside_of_an_experiment_reports_are_printed(capsys, monkeypatch):
    monkeypatch.delenv("LIGHTLIB_TRIAL_JOB", raising=False)
    trial = current()
    assert (trial.hparams, trial.should_stop) == ({}, False)
    trial.report(3, val_loss=0.25)
    assert "step 3: val_loss 0.25" in "".join(capsys.readouterr())
