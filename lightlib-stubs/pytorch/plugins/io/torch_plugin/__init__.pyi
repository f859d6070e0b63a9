# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.io import TorchCheckpointIO
__all__ = ['TorchCheckpointIO']
