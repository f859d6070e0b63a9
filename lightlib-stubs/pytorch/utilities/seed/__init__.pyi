# Written by scripts/typing_stubs.py --write.
from lightlib import isolate_rng
__all__ = ['isolate_rng']
