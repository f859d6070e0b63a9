# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelCheckpoint
from lightlib.loggers import Logger, MLFlowLogger, rank_zero_experiment
from lightlib_lightning.internals.logged import add_prefix as _add_prefix, convert_params as _convert_params, flatten_dict as _flatten_dict, scan_checkpoints as _scan_checkpoints
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.values import LOCAL_FILE_URI_PREFIX
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
__all__ = ['LOCAL_FILE_URI_PREFIX', 'Logger', 'MLFlowLogger', 'ModelCheckpoint', 'RequirementCache', '_MLFLOW_AVAILABLE', '_MLFLOW_SYNCHRONOUS_AVAILABLE', '_add_prefix', '_convert_params', '_flatten_dict', '_scan_checkpoints', 'log', 'rank_zero_experiment', 'rank_zero_only', 'rank_zero_warn']
_MLFLOW_AVAILABLE: bool
_MLFLOW_SYNCHRONOUS_AVAILABLE: bool
