# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelCheckpoint
from lightlib.loggers import DummyExperiment, DummyLogger, FabricLogger, Logger, rank_zero_experiment
from lightlib_lightning.tools.parsing import merge_dicts
__all__ = ['DummyExperiment', 'DummyLogger', 'FabricLogger', 'Logger', 'ModelCheckpoint', 'merge_dicts', 'rank_zero_experiment']
