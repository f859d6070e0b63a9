# Written by scripts/typing_stubs.py --write.
from lightlib import Callback, isolate_rng
from lightlib.callbacks import LearningRateFinder
__all__ = ['Callback', 'LearningRateFinder', 'isolate_rng']
