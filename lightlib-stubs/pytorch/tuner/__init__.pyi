# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch.tuner import batch_size_scaling, lr_finder, tuning
from lightlib.tuner import Tuner
__all__ = ['Tuner', 'batch_size_scaling', 'lr_finder', 'tuning']
