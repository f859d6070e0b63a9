# Written by scripts/typing_stubs.py --write.
from lightlib.loggers import FabricLogger as Logger, rank_zero_experiment
from lightlib_lightning.internals.functions import is_dir as _is_dir
from lightlib_lightning.internals.logged import add_prefix as _add_prefix, convert_params as _convert_params, flatten_dict as _flatten_dict
from lightlib_lightning.tools.fabric_loggers import TensorBoardLogger
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.types import _PATH
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
__all__ = ['Logger', 'RequirementCache', 'TensorBoardLogger', '_PATH', '_TENSORBOARDX_AVAILABLE', '_TENSORBOARD_AVAILABLE', '_add_prefix', '_convert_params', '_flatten_dict', '_is_dir', 'get_filesystem', 'rank_zero_experiment', 'rank_zero_only', 'rank_zero_warn']
_TENSORBOARDX_AVAILABLE: bool
_TENSORBOARD_AVAILABLE: bool
