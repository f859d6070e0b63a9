# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.io import AsyncCheckpointIO, _WrappingCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['AsyncCheckpointIO', '_WrappingCheckpointIO', 'apply_to_collection']
