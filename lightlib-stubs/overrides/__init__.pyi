# Written by scripts/typing_stubs.py --write.
from lightlib.overrides import distributed
__all__ = ['distributed']
