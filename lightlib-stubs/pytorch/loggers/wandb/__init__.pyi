# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelCheckpoint
from lightlib.errors import MisconfigurationException
from lightlib.loggers import Logger, WandbLogger, rank_zero_experiment
from lightlib_lightning.internals.logged import add_prefix as _add_prefix, convert_params as _convert_params, sanitize_callable_params as _sanitize_callable_params, scan_checkpoints as _scan_checkpoints
from lightlib_lightning.types import _PATH
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
__all__ = ['Logger', 'MisconfigurationException', 'ModelCheckpoint', 'RequirementCache', 'WandbLogger', '_PATH', '_WANDB_AVAILABLE', '_add_prefix', '_convert_params', '_sanitize_callable_params', '_scan_checkpoints', 'rank_zero_experiment', 'rank_zero_only', 'rank_zero_warn']
_WANDB_AVAILABLE: bool
