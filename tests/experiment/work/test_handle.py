"""Experiments from Python: begun, looked at, paused and ended."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys

import pytest
import torch

pytest.importorskip("optuna")

from lightlib import experiment
from lightlib.config.yaml.document import ConfigError
from lightlib.errors import LightlibError, MisconfigurationException
from tests.experiment.work.project import ROOT, Project, until

TWO = "searcher: {name: random, metric: val_loss, max_trials: 2}"
HOLD = f"fit: {{model: {{init_args: {{holds_at: [2]}}}}}}\n{TWO}"


@pytest.fixture
def project(tmp_path, monkeypatch, request):
    made = Project(tmp_path, getattr(request, "param", TWO))
    monkeypatch.chdir(made.folder)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    yield made
    sys.modules.pop("model", None)  # imported by the check of the experiment


@pytest.mark.processes
def test_an_experiment_runs_and_shows_its_results(project):
    found = experiment.run("search.yaml", slots=2, config=["searcher.max_trials=3"])
    assert found.state == "completed"
    assert [(one.number, one.state) for one in found.trials] == [(0, "completed"), (1, "completed"), (2, "completed")]
    best = min(found.trials, key=lambda one: one.metric)
    assert found.best == best
    assert found.front == [best]
    written = project.messages(best.number, "validated")
    assert found.metrics(best.number) == [{"step": one["step"], **one["metrics"]} for one in written]
    assert [len(found.study.trials), found.study.best_value] == [3, best.metric]
    assert repr(experiment.open("search")) == repr(found) == f"Experiment({str(project.experiment)!r})"
    loaded = found.load(runpy.run_path(str(project.folder / "model.py"))["Line"])
    saved = torch.load(found.checkpoint(), weights_only=True)
    assert saved["global_step"] == best.step
    assert torch.equal(loaded.layer.weight, saved["state_dict"]["layer.weight"])
    assert loaded.hparams.lr == best.hparams["lr"]
    assert found.wait() is found


@pytest.mark.processes
@pytest.mark.parametrize("project", [HOLD], indirect=True)
def test_orders_reach_the_worker_in_the_background(project):
    begun = experiment.run("search.yaml", slots=2, wait=False)
    until(lambda: len(project.held()) == 2)
    assert begun.state == "running"
    begun.pause()
    until(lambda: begun.state == "paused")
    begun.resume()
    project.let_go()
    assert begun.wait().state == "completed"
    begun.cancel()  # changes nothing
    assert [one.attempts for one in begun.trials] == [2, 2]
    assert experiment.open("search").best == begun.best


@pytest.mark.processes
@pytest.mark.parametrize("project", [HOLD], indirect=True)
def test_ctrl_c_lets_trials_pause(project):
    program = "from lightlib import experiment; experiment.run('search.yaml', slots=2)"
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, start_new_session=True)
    project.started.append(process)
    until(lambda: len(project.held()) == 2)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert b"KeyboardInterrupt" in errors
    assert len(list(project.experiment.glob("trials/*/*/checkpoints/interrupted.ckpt"))) == 2
    assert experiment.open("search").state == "waiting"


@pytest.mark.processes
def test_a_worker_that_ends_too_early_is_an_error(project):
    contents = {
        "name": "other",
        "entrypoint": "config.yaml",
        "searcher": {"name": "single", "metric": "absent"},
    }
    with pytest.raises(LightlibError, match=r"is canceled, and its worker has ended with exit code(.|\n)*'absent'"):
        experiment.run(contents, slots=1)
    assert json.loads(project.command("experiment", "describe", "other", "--json"))["state"] == "canceled"


def test_bad_input_is_refused_before_anything_is_written(project):
    with pytest.raises(ConfigError, match="Did you mean 'max_trials'"):
        experiment.run("search.yaml", config=["searcher.max_trial=3"])
    with pytest.raises(MisconfigurationException, match="--slots is 'x'"):
        experiment.run("search.yaml", slots="x")
    assert not (project.folder / "experiments").exists()
    with pytest.raises(MisconfigurationException, match="There is no experiment in 'search'"):
        experiment.open("search")


@pytest.mark.processes
def test_without_an_experiment_optuna_is_not_imported():
    program = "import sys; from lightlib import experiment; experiment.current(); print('optuna' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
