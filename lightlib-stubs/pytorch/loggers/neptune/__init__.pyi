# Written by scripts/typing_stubs.py --write.
from lightlib.loggers import NeptuneLogger
__all__ = ['NeptuneLogger']
