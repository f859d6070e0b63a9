# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelCheckpoint
from lightlib.compat.internals.connectors import CheckpointConnector as _CheckpointConnector
from lightlib.compat.internals.functions import is_dir as _is_dir
from lightlib.compat.loggers import log
from lightlib.compat.plugins.precision import MixedPrecision
from lightlib.compat.tools.commands import find_model_local_ckpt_path
from lightlib.compat.tools.old_pickles import pl_legacy_patch
from lightlib.compat.tools.small_functions import get_filesystem
from lightlib.compat.types import _PATH
from lightlib.core.progress.states import TrainerFn
from lightlib.errors import MisconfigurationException
from lightlib.launch import SLURMEnvironment
from lightning_utilities.core.imports import module_available
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['MisconfigurationException', 'MixedPrecision', 'ModelCheckpoint', 'SLURMEnvironment', 'TrainerFn', '_CheckpointConnector', '_OMEGACONF_AVAILABLE', '_PATH', '_is_dir', 'find_model_local_ckpt_path', 'get_filesystem', 'log', 'module_available', 'pl_legacy_patch', 'rank_zero_info', 'rank_zero_warn']
_OMEGACONF_AVAILABLE: bool
