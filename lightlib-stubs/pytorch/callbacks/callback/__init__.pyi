# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib_lightning.types import STEP_OUTPUT
__all__ = ['Callback', 'STEP_OUTPUT']
