"""The end of an attempt of a command that may not restart."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from tests.experiment.work.small import config


def test_a_command_that_may_not_restart(tmp_path):
    with open_ledger(ExperimentFolder(tmp_path), config()) as ledger:
        ledger.add(Entry(0))
        attempt = ledger.snapshot().last(0)
        assert ledger.claim(attempt, {})
        ledger.end(attempt, "failed", again=False)
        assert ledger.snapshot().state_of(0) == "errored"
        assert len(ledger.snapshot().attempts) == 1
