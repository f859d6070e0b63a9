# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.closures import AbstractClosure, OutputResult
from lightlib.compat.types import T
from lightlib.errors import MisconfigurationException
__all__ = ['AbstractClosure', 'MisconfigurationException', 'OutputResult', 'T']
