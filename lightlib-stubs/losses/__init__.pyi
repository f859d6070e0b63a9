# Written by scripts/typing_stubs.py --write.
from lightlib.losses.chunked import linear_cross_entropy
__all__ = ['linear_cross_entropy']
