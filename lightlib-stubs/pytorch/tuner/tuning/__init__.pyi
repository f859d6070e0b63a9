# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.compat.types import EVAL_DATALOADERS, TRAIN_DATALOADERS
from lightlib.errors import MisconfigurationException
from lightlib.tuner import Tuner
__all__ = ['Callback', 'EVAL_DATALOADERS', 'MisconfigurationException', 'TRAIN_DATALOADERS', 'Tuner']
