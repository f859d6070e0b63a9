# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.compat.types import STEP_OUTPUT
__all__ = ['Callback', 'STEP_OUTPUT']
