"""Loggers: record the metrics of a run. Each is imported when its name is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.loggers.comet import CometLogger
    from lightlib.loggers.csv import CSVLogger
    from lightlib.loggers.fabric_logger import FabricLogger
    from lightlib.loggers.fanout import Fanout
    from lightlib.loggers.hyperparameters import flatten, plain
    from lightlib.loggers.jsonl import JSONLLogger
    from lightlib.loggers.logger import DummyExperiment, DummyLogger, Logger, rank_zero_experiment
    from lightlib.loggers.mlflow import MLFlowLogger
    from lightlib.loggers.neptune import NeptuneLogger
    from lightlib.loggers.services.aim import AimLogger
    from lightlib.loggers.services.clearml import ClearMLLogger
    from lightlib.loggers.services.dvclive import DVCLiveLogger
    from lightlib.loggers.services.trackio import TrackioLogger
    from lightlib.loggers.tensorboard import TensorBoardLogger
    from lightlib.loggers.wandb import WandbLogger

__all__ = [
    "AimLogger",
    "CSVLogger",
    "ClearMLLogger",
    "CometLogger",
    "DVCLiveLogger",
    "DummyExperiment",
    "DummyLogger",
    "FabricLogger",
    "Fanout",
    "JSONLLogger",
    "Logger",
    "MLFlowLogger",
    "NeptuneLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
    "flatten",
    "plain",
    "rank_zero_experiment",
]

_get, _names = lazy.attributes(
    __name__,
    {
        "AimLogger": "services.aim",
        "CSVLogger": "csv",
        "ClearMLLogger": "services.clearml",
        "CometLogger": "comet",
        "DVCLiveLogger": "services.dvclive",
        "DummyExperiment": "logger",
        "DummyLogger": "logger",
        "FabricLogger": "fabric_logger",
        "Fanout": "fanout",
        "JSONLLogger": "jsonl",
        "Logger": "logger",
        "MLFlowLogger": "mlflow",
        "NeptuneLogger": "neptune",
        "TensorBoardLogger": "tensorboard",
        "TrackioLogger": "services.trackio",
        "WandbLogger": "wandb",
        "flatten": "hyperparameters",
        "plain": "hyperparameters",
        "rank_zero_experiment": "logger",
    },
)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
