# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.fabric_loggers import CSVLogger, TensorBoardLogger
from lightlib.fabric.loggers import csv_logs, logger, tensorboard
from lightlib.loggers import FabricLogger as Logger
__all__ = ['CSVLogger', 'Logger', 'TensorBoardLogger', 'csv_logs', 'logger', 'tensorboard']
