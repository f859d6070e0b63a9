# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.absent import Absent
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.io import TorchCheckpointIO
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.types import _PATH
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.imports import RequirementCache
__all__ = ['RequirementCache', 'TorchCheckpointIO', 'XLACheckpointIO', '_PATH', '_XLA_AVAILABLE', 'apply_to_collection', 'get_filesystem', 'log']
class XLACheckpointIO(Absent): ...
_XLA_AVAILABLE: bool
