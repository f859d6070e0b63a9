# Written by scripts/typing_stubs.py --write.
from lightlib.tuner import batch_size_scaling, lr_finder, tuning
from lightlib.tuner.tuning import Tuner
__all__ = ['Tuner', 'batch_size_scaling', 'lr_finder', 'tuning']
