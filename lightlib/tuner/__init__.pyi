# Written by scripts/typing_stubs.py --write.
from lightlib.tuner.tuning import Tuner
__all__ = ['Tuner']
