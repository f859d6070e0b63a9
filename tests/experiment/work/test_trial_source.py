"""The source of new trials: random points are not tried twice."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.space import Space
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.trial_source import source_of
from tests.experiment.work.small import FILE, config


def test_random_points_are_not_tried_twice(tmp_path):
    """Of three values three trials have each one; `duplicates: allow` draws as it comes."""
    for duplicates, different in (("skip", 3), ("allow", 2)):
        place = ExperimentFolder(tmp_path / duplicates)
        changed = config(
            searcher={**FILE["searcher"], "duplicates": duplicates}, reproducibility={"experiment_seed": 3}
        )
        with open_ledger(place, changed) as ledger:
            source = source_of(changed, Space(changed.hyperparameters), 2)
            while entry := source.next_entry(ledger.snapshot()):
                ledger.add(entry)
            points = {chain[0].params["trainer.max_steps"] for chain in ledger.snapshot().chains.values()}
        assert len(points) == different
