"""Checkpoints of trials: which there are, and which are deleted when trials and experiments end."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.file import read
from lightlib.experiment.messages import Messages
from lightlib.experiment.store import Store
from lightlib.experiment.work.checkpoints import checkpoints_of, collect
from lightlib.experiment.work.folder import ExperimentFolder
from tests.experiment.work.project import Project

# trial → attempts → (batches, metric or None, name of the checkpoint or None)
WRITTEN = {
    0: [[(4, 0.5, "a"), (6, None, "interrupted")], [(8, 0.3, "b"), (12, 0.4, "last")]],
    1: [[(4, 0.2, "a"), (8, 0.6, "b"), (8, None, "last")]],
    2: [[(4, 0.9, None), (6, None, "folder/")]],
}


@pytest.fixture
def folder(tmp_path):
    found = ExperimentFolder(tmp_path)
    for trial, attempts in WRITTEN.items():
        for number, events in enumerate(attempts):
            path = found.attempt(trial, number)
            (path / "checkpoints").mkdir(parents=True)
            messages = Messages(path)
            for step, metric, name in events:
                if metric is not None:
                    messages.send("validated", step=step, metrics={"loss": metric})
                if name is not None:
                    file = path / "checkpoints" / name
                    file.mkdir() if name.endswith("/") else file.write_bytes(b"1234")
                    (file / "part").write_bytes(b"12") if name.endswith("/") else None
                    messages.send("checkpoint", step=step, path=str(file))
    return found


def config(**rules):
    searcher = {"name": "random", "metric": "loss", "max_trials": 3}
    return read({"name": "a", "fit": {"trainer": {}}, "searcher": searcher, "checkpoint_storage": rules})


def store(folder):
    return Store(folder.path, config())


def names(folder, *trials):
    return [
        f"{one.trial}/{one.path.name}"
        for trial in trials
        for one in checkpoints_of(folder, store(folder), trial, "loss")
    ]


def test_the_checkpoints_of_a_trial_are_those_of_all_its_attempts(folder):
    found = checkpoints_of(folder, store(folder), 0, "loss")
    assert [(one.step, one.metric, one.bytes) for one in found] == [
        (4, 0.5, 4),
        (6, None, 4),
        (8, 0.3, 4),
        (12, 0.4, 4),
    ]
    (one,) = checkpoints_of(folder, store(folder), 2, "loss")
    assert (one.path.name, one.metric, one.bytes) == ("folder", None, 2)


def test_a_checkpoint_that_was_replaced_is_as_new_as_its_last_version(folder):
    path = folder.attempt(1, 0)
    Messages(path).send("checkpoint", step=9, path=str(path / "checkpoints" / "a"))
    assert [(one.path.name, one.step) for one in checkpoints_of(folder, store(folder), 1, "loss")] == [
        ("b", 8),
        ("last", 8),
        ("a", 9),
    ]


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({}, ["0/b", "0/last", "1/a", "1/last", "2/folder"]),
        ({"save_trial_best": 2}, ["0/b", "0/last", "1/a", "1/b", "1/last", "2/folder"]),
        ({"save_trial_best": 0, "save_trial_latest": 1}, ["0/last", "1/last", "2/folder"]),
        ({"save_trial_best": 1, "save_trial_latest": 0}, ["0/b", "1/a"]),
        ({"save_trial_best": 0, "save_trial_latest": 0}, []),
        ({"save_experiment_best": 1, "save_trial_best": 0, "save_trial_latest": 0}, ["1/a"]),
        ({"save_experiment_best": 3, "save_trial_best": 0, "save_trial_latest": 0}, ["0/b", "0/last", "1/a"]),
        ({"save_trial_latest": 9}, ["0/a", "0/interrupted", "0/b", "0/last", "1/a", "1/b", "1/last", "2/folder"]),
    ],
)
def test_the_rules_at_the_end_of_an_experiment(folder, rules, kept):
    deleted = collect(folder, config(**rules), [0, 1, 2], at_end=True)
    assert names(folder, 0, 1, 2) == kept
    assert len(deleted) == 8 - len(kept)
    assert collect(folder, config(**rules), [0, 1, 2], at_end=True) == []


def test_at_the_end_of_a_trial_those_stay_that_may_be_the_best_of_the_experiment(folder):
    rules = {"save_experiment_best": 1, "save_trial_best": 0, "save_trial_latest": 0}
    collect(folder, config(**rules), [0], at_end=False)
    assert names(folder, 0, 1, 2) == ["0/a", "0/b", "0/last", "1/a", "1/b", "1/last", "2/folder"]


@pytest.mark.processes
def test_a_search_keeps_the_checkpoints_of_its_rules(tmp_path):
    """Two of each trial after three validations; those of the paused ones stay until nothing continues them."""
    project = Project(
        tmp_path,
        """
        checkpoint_policy: all
        checkpoint_storage: {save_trial_best: 1, save_trial_latest: 1}
        searcher: {name: halving, metric: val_loss, num_rungs: 2, divisor: 2, max_trials: 2, max_length: {epochs: 4}}
        """,
    )
    printed = project.run()
    for one in project.trials():
        files = sorted(path.name for path in project.experiment.glob(f"trials/{one.number:04d}/*/checkpoints/*"))
        if one.state == "completed":
            assert files == ["epoch=3-step=16.ckpt", "last.ckpt"]
        else:
            assert "interrupted.ckpt" in files
            assert len(files) <= 2
    (line,) = [line for line in printed.splitlines() if "checkpoint: " in line]
    assert Path(project.folder, line.split(": ")[1]).is_file()
