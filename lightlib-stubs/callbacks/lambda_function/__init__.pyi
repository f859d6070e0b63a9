# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import LambdaCallback
__all__ = ['Callback', 'LambdaCallback']
