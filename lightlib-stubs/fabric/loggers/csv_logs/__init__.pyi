# Written by scripts/typing_stubs.py --write.
from lightlib.compat.internals.functions import is_dir as _is_dir
from lightlib.compat.internals.logged import add_prefix as _add_prefix
from lightlib.compat.loggers import log
from lightlib.compat.tools.fabric_loggers import CSVLogger
from lightlib.compat.tools.small_functions import get_filesystem
from lightlib.compat.types import _PATH
from lightlib.loggers import FabricLogger as Logger, rank_zero_experiment
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
__all__ = ['CSVLogger', 'Logger', '_PATH', '_add_prefix', '_is_dir', 'get_filesystem', 'log', 'rank_zero_experiment', 'rank_zero_only', 'rank_zero_warn']
