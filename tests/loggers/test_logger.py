"""The base class, the logger that does nothing, and the lazy names of the package."""

from __future__ import annotations

import copy
import os
import pickle

import pytest
import torch

import lightlib
import lightlib.loggers
from lightlib.callbacks import ProgressBar
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import DummyExperiment, DummyLogger, FabricLogger, Logger, NeptuneLogger, rank_zero_experiment
from lightlib.loggers.logger import number
from lightlib.report import rank_zero_only
from lightlib.testing import BoringModule
from tests.processes import programs


def test_a_logger_of_ones_own_needs_four_definitions():
    class Mine(Logger):
        name, version = "mine", 3

        def __init__(self):
            self.seen = []

        def log_metrics(self, metrics, step=None):
            self.seen.append((dict(metrics), step))

        def log_hyperparams(self, params, *args, **kwargs):
            self.seen.append(params)

    logger = Mine()
    logger.prepare()
    logger.share(lambda value: value)
    logger.log_metrics({"a": 1.0}, 2)
    logger.log_graph(torch.nn.Linear(1, 1))
    logger.after_save_checkpoint(None)
    logger.finalize("success")
    assert logger.seen == [({"a": 1.0}, 2)]
    assert (logger.save_dir, logger.root_dir, logger.log_dir, logger.experiment) == (None, None, None, None)
    assert logger.group_separator == "/"
    assert logger.run_dir("root") == os.path.join("root", "mine", "version_3")
    assert logger.earlier_run_dirs("root") == []
    assert repr(logger) == "Mine()"


def test_name_and_version_may_be_methods(tmp_path):
    class Mine(Logger):
        def name(self):
            return "mine"

        def version(self):
            return "0.1"

        def log_metrics(self, metrics, step=None):
            pass

        def log_hyperparams(self, params, *args, **kwargs):
            pass

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1, "limit_train_batches": 1}
    trainer = lightlib.Trainer(default_root_dir=tmp_path, logger=Mine(), accelerator="cpu", **quiet)
    trainer.fit(BoringModule())
    assert os.listdir(tmp_path / "mine" / "0.1" / "checkpoints") == ["epoch=0-step=1.ckpt"]
    assert ProgressBar().get_metrics(trainer, trainer.model)["v_num"] == "0.1"


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Logger()


def test_one_class_may_derive_from_a_logger_for_fabric_and_from_the_base():
    class Rows(FabricLogger):
        name, version = "rows", 1

        def __init__(self, prefix=""):
            self.rows, self.prefix = [], prefix

        def log_metrics(self, metrics, step=None):
            self.rows.append((step, {self.prefix + name: value for name, value in metrics.items()}))

        def log_hyperparams(self, params, *args, **kwargs):
            self.rows.append(params)

        def finalize(self, status):
            self.rows.append(status)

    class Both(Logger, Rows):
        def __init__(self):
            super().__init__(prefix="run/")

    logger = Both()
    logger.log_metrics({"a": 1.0}, step=2)
    logger.finalize("success")
    assert logger.rows == [(2, {"run/a": 1.0}), "success"]
    assert (logger.name, logger.save_dir, logger.state_dict()) == ("rows", None, {})
    assert logger.run_dir("root") == os.path.join("root", "rows", "version_1")
    assert not issubclass(Rows, Logger)


def test_every_logger_is_one_for_fabric():
    names = [name for name in lightlib.loggers.__all__ if name.endswith("Logger") and name != "FabricLogger"]
    kinds = [getattr(lightlib.loggers, name) for name in names if name != "NeptuneLogger"]
    assert len(kinds) == 12
    assert all(issubclass(kind, Logger) and issubclass(kind, FabricLogger) for kind in kinds)


def test_the_dummy_logger_accepts_everything():
    logger = DummyLogger()
    logger.log_metrics({"a": 1.0}, 0)
    logger.log_metrics()
    logger.log_metrics("any", number="of", arguments=1)
    logger.log_hyperparams({"a": 1})
    assert logger.run_dir("root") is None
    logger.whatever(1, key=2)
    logger.experiment.add_image("x", None)
    logger.experiment[0].add_text("x", "y")
    logger[0].watch(None)
    assert list(logger) == []
    assert (logger.name, logger.version) == ("DummyLogger", "")
    assert isinstance(copy.deepcopy(pickle.loads(pickle.dumps(logger))), DummyLogger)


def test_other_ranks_get_an_experiment_that_does_nothing(monkeypatch):
    class Mine(DummyLogger):
        @property
        @rank_zero_experiment
        def experiment(self):
            """The text."""
            return "real"

    assert Mine().experiment == "real"
    assert Mine.experiment.__doc__ == "The text."
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    assert isinstance(Mine().experiment, DummyExperiment)


def test_number():
    assert number("a", torch.tensor([2.5])) == 2.5
    assert number("a", True) == 1.0
    for wrong in (torch.zeros(2), "0.5", None, [1.0]):
        with pytest.raises(
            ArgumentTypeError, match=r"The metric 'a' is .*\n  Expected: a number.*\n  Fix: log its mean"
        ):
            number("a", wrong)


def test_neptune_says_why_it_is_gone():
    with pytest.raises(MisconfigurationException, match=r"neptune\.ai has closed its service.*\n.*\n  Fix: use Tensor"):
        NeptuneLogger(project="x")


def test_all_names_of_the_package_exist():
    for name in lightlib.loggers.__all__:
        assert getattr(lightlib.loggers, name).__name__ == name
    assert set(lightlib.loggers.__all__) <= set(dir(lightlib.loggers))
    with pytest.raises(AttributeError, match="has no attribute 'Nope'"):
        _ = lightlib.loggers.Nope


@pytest.mark.processes
def test_nothing_is_imported_before_it_is_used():
    code = """
import sys
from lightlib.loggers import CSVLogger, CometLogger, Fanout, MLFlowLogger, TensorBoardLogger, WandbLogger
loggers = [CSVLogger("a"), TensorBoardLogger("b"), WandbLogger(), MLFlowLogger(), CometLogger()]
Fanout(loggers)
print(sorted({"tensorboard", "wandb", "mlflow", "comet_ml", "fsspec", "yaml"} & set(sys.modules)))
"""
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
