# Written by scripts/typing_stubs.py --write.
from lightlib.loggers import comet, csv_logs, litlogger, logger, mlflow, neptune, tensorboard, utilities, wandb
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
from lightlib_lightning.absent import Absent
__all__ = ['AimLogger', 'CSVLogger', 'ClearMLLogger', 'CometLogger', 'DVCLiveLogger', 'DummyExperiment', 'DummyLogger', 'FabricLogger', 'Fanout', 'JSONLLogger', 'LitLogger', 'Logger', 'MLFlowLogger', 'NeptuneLogger', 'TensorBoardLogger', 'TrackioLogger', 'WandbLogger', 'comet', 'csv_logs', 'flatten', 'litlogger', 'logger', 'mlflow', 'neptune', 'plain', 'rank_zero_experiment', 'tensorboard', 'utilities', 'wandb']
class LitLogger(Absent): ...
