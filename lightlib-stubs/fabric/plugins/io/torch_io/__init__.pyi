# Written by scripts/typing_stubs.py --write.
from lightlib.compat.loggers import log
from lightlib.compat.plugins.io import CheckpointIO, TorchCheckpointIO
from lightlib.compat.tools.parsing import pl_load
from lightlib.compat.tools.small_functions import get_filesystem
from lightlib.compat.types import _PATH
__all__ = ['CheckpointIO', 'TorchCheckpointIO', '_PATH', 'get_filesystem', 'log', 'pl_load']
