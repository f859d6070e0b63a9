"""CometLogger, against a stand-in for the client."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from unittest.mock import MagicMock

import pytest
import torch

from lightlib.errors import MisconfigurationException
from lightlib.loggers import CometLogger, DummyExperiment, WandbLogger
from lightlib.report import rank_zero_only


@pytest.fixture
def comet(monkeypatch):
    module = ModuleType("comet_ml")
    module.ExperimentConfig = lambda **arguments: ("config", arguments)
    module.start = MagicMock()
    module.start.return_value.get_key.return_value = "new key"
    monkeypatch.setitem(sys.modules, "comet_ml", module)
    return module


def test_how_an_experiment_is_started(comet):
    logger = CometLogger(workspace="w", project="p", online=False, mode="create", tags=["t"])
    assert (logger.name, logger.version) == ("p", None)
    comet.start.assert_not_called()
    logger.prepare()
    comet.start.assert_called_once_with(
        api_key=None,
        workspace="w",
        project="p",
        experiment_key=None,
        mode="create",
        online=False,
        experiment_config=("config", {"tags": ["t"]}),
    )
    assert logger.version == "new key"


def test_what_is_logged(comet):
    logger = CometLogger(prefix="p")
    logger.log_metrics({"x": torch.tensor(0.5), "epoch": 2.0}, 7)
    logger.experiment.log_metrics.assert_called_once_with({"p-x": 0.5, "p-epoch": 2.0}, step=7, epoch=2)
    logger.log_hyperparams({"a": {"b": 1, "token": "x"}})
    logger.experiment.log_parameters.assert_called_once_with({"a/b": 1, "a/token": "***"})
    logger.log_graph(torch.nn.Linear(1, 2))
    assert "Linear(in_features=1" in logger.experiment.set_model_graph.call_args.args[0]
    logger.finalize("success")
    logger.experiment.log_other.assert_called_with("status", "success")
    logger.experiment.flush.assert_called_once_with()
    logger.experiment.end.assert_not_called()


def test_nothing_is_started_only_to_end_it(comet):
    CometLogger().save()
    CometLogger().finalize("success")
    comet.start.assert_not_called()


def test_other_ranks(comet, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = CometLogger()
    logger.prepare()
    logger.log_metrics({"x": 1.0}, 0)
    assert isinstance(logger.experiment, DummyExperiment)
    comet.start.assert_not_called()
    logger.share(lambda value: "key")
    assert logger.version == "key"


def test_pickled_it_continues_the_experiment(comet):
    logger = CometLogger()
    logger.prepare()
    assert pickle.loads(pickle.dumps(logger)).version == "new key"


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "comet_ml", None)
    with pytest.raises(
        MisconfigurationException, match=r"needs the package comet-ml,.*\n.*\n  Fix: pip install 'comet-ml>="
    ):
        CometLogger().prepare()


def test_each_run_has_a_folder_which_is_found_again(comet, tmp_path):
    logger = CometLogger(project="p", api_key="secret")
    assert logger.run_dir(str(tmp_path)) is None  # there is no key yet
    (tmp_path / "p" / "before" / "checkpoints").mkdir(parents=True)
    assert logger.earlier_run_dirs(str(tmp_path)) == [str(tmp_path / "p" / "before")]
    assert CometLogger(project="p", mode="create").earlier_run_dirs(str(tmp_path)) == []
    logger.prepare()
    assert logger.run_dir(str(tmp_path)) == str(tmp_path / "p" / "new key")
    assert repr(logger) == "CometLogger(api_key='***', project='p', experiment_key='new key')"


def test_wandb_and_comet_go_on_with_the_same_run():
    assert WandbLogger().state_dict() == {}
    for kind, argument in ((WandbLogger, "id"), (CometLogger, "experiment_key")):
        state = kind(**{argument: "r"}).state_dict()
        assert state == {argument: "r"}
        logger = kind()
        logger.load_state_dict(state)
        assert logger.version == "r"
        given = kind(**{argument: "mine"})
        given.load_state_dict(state)
        assert given.version == "mine"
    new = CometLogger(mode="create")
    new.load_state_dict({"experiment_key": "r"})
    assert new.version is None
