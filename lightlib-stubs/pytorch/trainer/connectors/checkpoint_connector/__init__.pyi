# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelCheckpoint
from lightlib.core.progress.states import TrainerFn
from lightlib.errors import MisconfigurationException
from lightlib.launch import SLURMEnvironment
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.connectors import CheckpointConnector as _CheckpointConnector
from lightlib_lightning.internals.functions import is_dir as _is_dir
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.precision import MixedPrecision
from lightlib_lightning.tools.old_pickles import pl_legacy_patch
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.types import _PATH
from lightning_utilities.core.imports import module_available
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['MisconfigurationException', 'MixedPrecision', 'ModelCheckpoint', 'SLURMEnvironment', 'TrainerFn', '_CheckpointConnector', '_OMEGACONF_AVAILABLE', '_PATH', '_is_dir', 'find_model_local_ckpt_path', 'get_filesystem', 'log', 'module_available', 'pl_legacy_patch', 'rank_zero_info', 'rank_zero_warn']
_OMEGACONF_AVAILABLE: bool
class find_model_local_ckpt_path(Absent): ...
