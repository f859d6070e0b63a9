# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.io import CheckpointIO, _WrappingCheckpointIO
__all__ = ['CheckpointIO', '_WrappingCheckpointIO']
