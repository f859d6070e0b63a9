# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.io import CheckpointIO
__all__ = ['CheckpointIO']
