# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.io import CheckpointIO
from lightlib.compat.types import _PATH
__all__ = ['CheckpointIO', '_PATH']
