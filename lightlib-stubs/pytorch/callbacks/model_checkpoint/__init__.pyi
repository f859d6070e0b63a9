# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import Checkpoint, ModelCheckpoint
from lightlib.errors import MisconfigurationException
from lightlib_lightning.internals.functions import is_dir as _is_dir, is_local as _is_local_file_protocol
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.tools.values import warning_cache
from lightlib_lightning.types import STEP_OUTPUT, _PATH
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_info, rank_zero_warn
__all__ = ['Checkpoint', 'MisconfigurationException', 'ModelCheckpoint', 'STEP_OUTPUT', 'WarningCache', '_PATH', '_is_dir', '_is_local_file_protocol', 'get_filesystem', 'log', 'rank_zero_info', 'rank_zero_warn', 'warning_cache']
