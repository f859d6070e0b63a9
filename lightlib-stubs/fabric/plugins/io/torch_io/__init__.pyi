# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.io import CheckpointIO, TorchCheckpointIO
from lightlib_lightning.tools.parsing import pl_load
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.types import _PATH
__all__ = ['CheckpointIO', 'TorchCheckpointIO', '_PATH', 'get_filesystem', 'log', 'pl_load']
