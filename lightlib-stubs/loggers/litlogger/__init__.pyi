# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelCheckpoint
from lightlib.loggers import Logger, rank_zero_experiment
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.logged import add_prefix as _add_prefix, scan_checkpoints as _scan_checkpoints
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.types import _PATH
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['LitLogger', 'Logger', 'ModelCheckpoint', 'RequirementCache', '_LITLOGGER_AVAILABLE', '_PATH', '_add_prefix', '_scan_checkpoints', 'get_filesystem', 'log', 'rank_zero_experiment', 'rank_zero_only']
class LitLogger(Absent): ...
_LITLOGGER_AVAILABLE: bool
