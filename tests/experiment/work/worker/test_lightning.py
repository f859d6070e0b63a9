"""Projects of Lightning are searched as they are, after `lightlib compat run`."""

from __future__ import annotations

import os
import signal

import pytest
import torch

pytest.importorskip("optuna")

from lightlib.experiment.space import trial_seed
from tests.experiment.test_rungs import validated
from tests.experiment.work.project import MODEL, Project, trained, until

pytestmark = pytest.mark.processes
SEARCH = ("experiment", "run", "search.yaml", "--slots", "2")
COMPAT = ("compat", "run", "-m", "lightlib", *SEARCH)
LIGHTNING = (
    MODEL.replace("import lightlib as L", "import lightning.pytorch as pl")
    .replace("L.Module", "pl.LightningModule")
    .replace("L.DataModule", "pl.LightningDataModule")
)
TRAIN = """
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI

from lightlib import experiment
from model import Line, Points

trial = experiment.current()


class Report(Callback):
    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            trial.report(trainer.global_step, val_loss=trainer.callback_metrics["val_loss"].item())
            trainer.should_stop = trial.should_stop


class CLI(LightningCLI):
    def add_arguments_to_parser(self, parser):
        parser.set_defaults({"model.lr": trial.hparams["lr"]})


saves = ModelCheckpoint(trial.checkpoint_dir, save_last=True)
cli = CLI(Line, Points, run=False, trainer_defaults={"callbacks": [Report(), saves]})
cli.trainer.fit(cli.model, cli.datamodule, ckpt_path="last")
"""


def finished_after_a_kill(project, start, words, attempts):
    """Kill the worker with all its processes while each trial is within an epoch; the same command continues."""
    killed = start(*words)
    until(lambda: len(project.held()) == 2 or killed.poll() is not None)
    os.killpg(killed.pid, signal.SIGKILL)
    printed, _ = killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL, printed
    project.let_go()
    again = start(*words)
    printed, _ = again.communicate(timeout=300)
    assert again.returncode == 0, printed
    found = project.trials()
    assert [(one.state, one.attempts) for one in found] == [("completed", attempts)] * 2, printed
    return found


def test_a_project_of_lightning_needs_a_search_file_only(tmp_path):
    project = Project(tmp_path, model=LIGHTNING)
    (tmp_path / "config.yaml").write_text(
        """
        trainer:
          max_epochs: 3
          accelerator: cpu
          enable_progress_bar: false
          callbacks: [{class_path: lightning.pytorch.callbacks.LearningRateMonitor}]
          logger: {class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: .}}
        model: {class_path: model.Line, init_args: {holds_at: [6]}}
        data: {class_path: model.Points}
        """
    )
    project.write("searcher: {name: random, metric: val_loss, max_trials: 2}")
    for one in finished_after_a_kill(project, project.start_interpreter, COMPAT, attempts=2):
        weights, losses = trained(one.hparams["lr"], trial_seed(7, one.number))
        assert all(torch.equal(project.weights(one.number)[name], value) for name, value in weights.items())
        assert one.metric == min(losses)


def test_a_program_of_lightning_reports_to_the_search(tmp_path):
    """The second attempt is killed, too: the third one has the checkpoints of both, and takes the newest."""
    project = Project(
        tmp_path,
        """
        entrypoint: lightlib compat run train.py --config config.yaml
        searcher: {name: random, metric: val_loss, max_trials: 2}
        """,
        LIGHTNING,
    )
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(
        """
        seed_everything: 11
        trainer: {max_epochs: 3, accelerator: cpu, logger: false, enable_progress_bar: false}
        model: {holds_at: [6], dies_at: [10]}
        data: {batch_size: 8}
        """
    )
    for one in finished_after_a_kill(project, project.start, SEARCH, attempts=3):
        assert validated(project, one.number) == [4, 8, 12]
        weights, losses = trained(one.hparams["lr"], 11)
        assert all(torch.equal(project.weights(one.number)[name], value) for name, value in weights.items())
        assert one.metric == min(losses)
