# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.loggers import log
from lightlib.compat.plugins.io import TorchCheckpointIO
from lightlib.compat.tools.small_functions import get_filesystem
from lightlib.compat.types import _PATH
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.imports import RequirementCache
__all__ = ['RequirementCache', 'TorchCheckpointIO', 'XLACheckpointIO', '_PATH', '_XLA_AVAILABLE', 'apply_to_collection', 'get_filesystem', 'log']
class XLACheckpointIO(Absent): ...
_XLA_AVAILABLE: bool
