# Written by scripts/typing_stubs.py --write.
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
__all__ = ['AimLogger', 'CSVLogger', 'ClearMLLogger', 'CometLogger', 'DVCLiveLogger', 'DummyExperiment', 'DummyLogger', 'FabricLogger', 'Fanout', 'JSONLLogger', 'Logger', 'MLFlowLogger', 'NeptuneLogger', 'TensorBoardLogger', 'TrackioLogger', 'WandbLogger', 'flatten', 'plain', 'rank_zero_experiment']
