# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.errors import MisconfigurationException
from lightlib.tuner import Tuner
from lightlib_lightning.types import EVAL_DATALOADERS, TRAIN_DATALOADERS
__all__ = ['Callback', 'EVAL_DATALOADERS', 'MisconfigurationException', 'TRAIN_DATALOADERS', 'Tuner']
