# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.io import TorchCheckpointIO
__all__ = ['TorchCheckpointIO']
