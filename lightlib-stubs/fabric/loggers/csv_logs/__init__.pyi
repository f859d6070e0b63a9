# Written by scripts/typing_stubs.py --write.
from lightlib.loggers import FabricLogger as Logger, rank_zero_experiment
from lightlib_lightning.internals.functions import is_dir as _is_dir
from lightlib_lightning.internals.logged import add_prefix as _add_prefix
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.fabric_loggers import CSVLogger
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.types import _PATH
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
__all__ = ['CSVLogger', 'Logger', '_PATH', '_add_prefix', '_is_dir', 'get_filesystem', 'log', 'rank_zero_experiment', 'rank_zero_only', 'rank_zero_warn']
