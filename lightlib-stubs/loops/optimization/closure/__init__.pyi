# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.closures import AbstractClosure, OutputResult
from lightlib_lightning.types import T
__all__ = ['AbstractClosure', 'MisconfigurationException', 'OutputResult', 'T']
