# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.types import _PATH
__all__ = ['CheckpointIO', '_PATH']
