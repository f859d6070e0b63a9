# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch.overrides import distributed
__all__ = ['distributed']
