"""Lengths and periods in records and epochs, and first weights, have their effect in a trial."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")

from lightlib.experiment.space import trial_seed
from tests.experiment.work.project import Project, trained

pytestmark = pytest.mark.processes

BATCHES = 4  # of 8 of the 32 samples of an epoch


def validations(project):
    """Return the batches after which trial 0 validated, and the metric of each."""
    found = project.messages(0, "validated")
    return [one["step"] for one in found], [one["metrics"]["val_loss"] for one in found]


def saved_by_period(project):
    """Return the batches after which trial 0 saved a checkpoint for its period."""
    found = project.messages(0, "checkpoint")
    return [one["step"] for one in found if Path(one["path"]).name.startswith("newest")]


def assert_same(found, expected):
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_records_per_epoch_are_the_length_of_an_epoch(tmp_path):
    """Half of the dataset: two batches. The dataset has another length, of which one of two trials warns."""
    project = Project(
        tmp_path,
        """
        records_per_epoch: 16
        min_validation_period: {epochs: 1}
        min_checkpoint_period: {epochs: 2}
        hyperparameters: {lr: {type: categorical, vals: [0.05, 0.02]}, global_batch_size: 8}
        searcher: {name: grid, metric: val_loss, max_length: {epochs: 3}}
        """,
    )
    printed = project.run()
    warning = "'records_per_epoch' is 16, and the training dataset has 32 records."
    assert printed.count(warning) == 1, printed
    assert "Fix: records_per_epoch: 32" in printed
    for number, lr in enumerate((0.05, 0.02)):
        weights, losses = trained(lr, trial_seed(7, number), batches=6, period=2)
        assert [one["metrics"]["val_loss"] for one in project.messages(number, "validated")] == losses
        assert_same(project.weights(number), weights)
        assert warning in project.log(number)
    assert validations(project)[0] == [2, 4, 6]
    assert saved_by_period(project) == [4]


def test_records_per_epoch_of_rungs_and_of_the_dataset(tmp_path):
    """A search with rungs counts the same epochs; the number of the dataset changes nothing, and warns of nothing."""
    project = Project(
        tmp_path,
        """
        records_per_epoch: 32
        hyperparameters: {lr: 0.05, global_batch_size: 8}
        searcher: {name: halving, metric: val_loss, max_trials: 1, num_rungs: 2, divisor: 2, max_length: {epochs: 2}}
        """,
    )
    printed = project.run()
    assert "'records_per_epoch'" not in printed + project.log(0)
    weights, losses = trained(0.05, trial_seed(7, 0), epochs=2)
    assert validations(project) == ([BATCHES, 2 * BATCHES], losses)
    assert_same(project.weights(0), weights)
    assert [one["rung"] for one in project.messages(0, "rung")] == [0, 1]


def test_periods_in_records_and_epochs(tmp_path):
    project = Project(
        tmp_path,
        """
        min_validation_period: {records: 24}
        min_checkpoint_period: {epochs: 2}
        hyperparameters: {lr: 0.05, global_batch_size: 8}
        searcher: {name: single, metric: val_loss, max_length: {epochs: 4}}
        """,
    )
    project.run()
    weights, losses = trained(0.05, trial_seed(7, 0), epochs=4, period=3)
    found, values = validations(project)
    assert (found[:5], values[:5]) == ([3, 6, 9, 12, 15], losses[:5])
    assert saved_by_period(project) == [2 * BATCHES, 4 * BATCHES]
    assert_same(project.weights(0), weights)


@pytest.mark.parametrize("source", ["source_trial_id: before/0", "source_checkpoint_uuid: first.ckpt"])
def test_first_weights_and_a_validation_every_other_epoch(tmp_path, source):
    """The second search begins with the last weights of the first one's trial."""
    project = Project(tmp_path, "hyperparameters: {lr: 0.1}\nsearcher: {name: single, metric: val_loss}")
    project.run()
    first = project.weights(0)
    assert_same(first, trained(0.1, trial_seed(7, 0))[0])
    saved = project.experiment / "trials" / "0000" / "attempt-0" / "checkpoints" / "last.ckpt"
    (project.folder / "first.ckpt").write_bytes(saved.read_bytes())
    project.experiment.rename(project.folder / "experiments" / "before")
    project.write(
        f"""
        min_validation_period: {{epochs: 2}}
        hyperparameters: {{lr: 0.05}}
        searcher: {{name: single, metric: val_loss, {source}, max_length: {{epochs: 4}}}}
        """
    )
    project.run()
    weights, losses = trained(0.05, trial_seed(7, 0), epochs=4, first=first, period=2 * BATCHES)
    assert validations(project) == ([2 * BATCHES, 4 * BATCHES], losses)
    assert_same(project.weights(0), weights)
    assert not torch.equal(weights["layer.weight"], trained(0.05, trial_seed(7, 0), epochs=4)[0]["layer.weight"])
