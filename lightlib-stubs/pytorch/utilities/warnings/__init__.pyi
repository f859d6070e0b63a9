# Written by scripts/typing_stubs.py --write.
from lightlib.report import PossibleUserWarning
__all__ = ['PossibleUserWarning']
