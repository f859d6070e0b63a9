# Written by scripts/typing_stubs.py --write.
from lightlib.fabric.loggers import csv_logs, logger, tensorboard
from lightlib.loggers import FabricLogger as Logger
from lightlib_lightning.tools.fabric_loggers import CSVLogger, TensorBoardLogger
__all__ = ['CSVLogger', 'Logger', 'TensorBoardLogger', 'csv_logs', 'logger', 'tensorboard']
