"""Experiments that begin with the settings and the weights of another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")

from lightlib.config.yaml.document import ConfigError
from lightlib.experiment.file import read
from lightlib.experiment.messages import Messages
from lightlib.experiment.space import trial_seed
from lightlib.experiment.work import weights
from lightlib.experiment.work.folder import ExperimentFolder
from tests.experiment.work.project import MODEL, Project, trained

SEARCHER = {"name": "random", "metric": "loss", "max_trials": 1}
FILE = {"name": "a", "fit": {"trainer": {}}, "searcher": SEARCHER, "reproducibility": {"experiment_seed": 1}}


def test_the_newest_checkpoint_of_a_trial_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = ExperimentFolder(Path("experiments") / "a")
    folder.begin(read(FILE), tmp_path)
    for attempt, step in ((0, 8), (1, 4)):
        path = folder.attempt(3, attempt)
        path.mkdir(parents=True)
        (path / "b.ckpt").touch()
        Messages(path).send("checkpoint", step=step, path="b.ckpt")
    for name in ("a/3", "experiments/a/3", str(folder.path / "3")):
        found = weights.find(read({**FILE, "searcher": {**SEARCHER, "source_trial_id": name}}))
        assert found == folder.attempt(3, 0) / "b.ckpt"
    assert weights.find(read(FILE)) is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("source_trial_id", 3, "is 3, which is no trial of an experiment here"),
        ("source_trial_id", "b/0", r"is 'b/0', which is no trial of an experiment here\."),
        ("source_trial_id", "aa/0", r"Did you mean 'a'\?(.|\n)*searcher\.source_trial_id: a/0"),
        ("source_trial_id", "a/x", "is 'a/x', which is no trial"),
        ("source_trial_id", "a/7", "is 'a/7', and this trial has no checkpoint"),
        ("source_checkpoint_uuid", "b.ckpt", r"is 'b\.ckpt', and there is no such file or folder, seen from"),
    ],
)
def test_weights_that_there_are_not_are_refused(tmp_path, monkeypatch, key, value, message):
    monkeypatch.chdir(tmp_path)
    ExperimentFolder(Path("experiments") / "a").begin(read(FILE), tmp_path)
    with pytest.raises(ConfigError, match=message):
        weights.find(read({**FILE, "searcher": {**SEARCHER, key: value}}))


def test_a_program_loads_its_weights_itself():
    file = {"name": "a", "entrypoint": "python train.py", "searcher": {**SEARCHER, "source_checkpoint_uuid": "b"}}
    with pytest.raises(ConfigError, match="is 'b', and the trials are a program, which loads its weights itself"):
        weights.find(read(file))


@pytest.mark.processes
def test_a_fork_begins_with_the_weights_of_a_trial(tmp_path):
    project = Project(tmp_path, "searcher: {name: random, metric: val_loss, max_trials: 1}")
    project.run()
    first = project.weights(0)
    (project.folder / "model.py").write_text("raise ValueError")  # the fork has the code of the first one
    assert "experiments/search-2 has begun" in project.command("experiment", "fork", "search/0")
    (project.folder / "experiments" / "search").rename(project.folder / "moved")  # and a copy of the weights
    project.command("experiment", "work", "search-2", "--slots", "2")
    found = json.loads(project.command("experiment", "trials", "search-2", "--json"))[0]
    expected, losses = trained(found["hparams"]["lr"], trial_seed(7, 0), first=first)
    assert found["metric"] == min(losses)
    saved = project.folder / "experiments" / "search-2" / "trials" / "0000" / "attempt-0" / "checkpoints" / "last.ckpt"
    now = torch.load(saved, weights_only=True)["state_dict"]
    assert all(torch.equal(now[name], value) for name, value in expected.items())
    best = json.loads(project.command("experiment", "best", "moved", "--json"))["checkpoint"]
    assert Path(best).is_relative_to(project.folder / "moved"), "an experiment may be moved"
    assert "experiments/other has begun" in project.command("experiment", "fork", "search-2", "--name", "other")
    kept = project.folder / "experiments" / "other" / "first.ckpt"
    assert kept.read_bytes() == (project.folder / "experiments" / "search-2" / "first.ckpt").read_bytes()
    assert "There is an experiment in" in project.command("experiment", "fork", "other", "--name", "other", code=2)
    assert "experiments/search-3 has begun" in project.command("experiment", "fork", str(saved))
    again = project.folder / "experiments" / "search-3" / "first.ckpt"
    assert again.read_bytes() == saved.read_bytes()


@pytest.mark.processes
def test_weights_that_do_not_fit_end_a_trial_as_invalid(tmp_path):
    """Of the widths 1 and 2, one is that of the first weights."""
    model = MODEL.replace("lr=0.1,", "lr=0.1, width=1,").replace(
        "torch.nn.Linear(2, 1)", "torch.nn.Linear(2, width, bias=False)"
    )
    single = "searcher: {name: single, metric: val_loss}\nhyperparameters: {width: 1}"
    project = Project(tmp_path, single, model)
    project.run()
    project.write(
        """
        name: other
        hyperparameters: {width: {type: categorical, vals: [2, 1]}}
        searcher: {name: grid, metric: val_loss, source_trial_id: search/0}
        """
    )
    assert "has begun" in project.command("experiment", "create", "search.yaml")
    printed = project.command("experiment", "work", "other", "--slots", "1")
    assert "invalid: The first weights do not fit" in printed
    assert "1 completed, 1 invalid" in printed
