# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
__all__ = ['MisconfigurationException']
