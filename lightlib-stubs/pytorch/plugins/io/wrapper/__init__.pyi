# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.io import CheckpointIO, _WrappingCheckpointIO
__all__ = ['CheckpointIO', '_WrappingCheckpointIO']
