# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import Checkpoint
__all__ = ['Callback', 'Checkpoint']
