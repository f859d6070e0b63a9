# Written by scripts/typing_stubs.py --write.
from lightlib.loggers import CSVLogger, CometLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightlib.pytorch.loggers import comet, csv_logs, litlogger, logger, mlflow, neptune, tensorboard, utilities, wandb
from lightlib_lightning.absent import Absent
__all__ = ['CSVLogger', 'CometLogger', 'LitLogger', 'Logger', 'MLFlowLogger', 'TensorBoardLogger', 'WandbLogger', 'comet', 'csv_logs', 'litlogger', 'logger', 'mlflow', 'neptune', 'tensorboard', 'utilities', 'wandb']
class LitLogger(Absent): ...
