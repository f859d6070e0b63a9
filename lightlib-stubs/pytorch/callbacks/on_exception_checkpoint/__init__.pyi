# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import Checkpoint, OnExceptionCheckpoint
from lightlib_lightning.types import _PATH
__all__ = ['Checkpoint', 'OnExceptionCheckpoint', '_PATH']
