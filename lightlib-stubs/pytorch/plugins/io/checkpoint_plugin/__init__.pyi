# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.io import CheckpointIO
__all__ = ['CheckpointIO']
