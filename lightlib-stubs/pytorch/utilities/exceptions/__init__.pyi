# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException, SIGTERMException
__all__ = ['MisconfigurationException', 'SIGTERMException']
