# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelCheckpoint
from lightlib.loggers import Logger, TensorBoardLogger
from lightlib_lightning.internals.functions import is_dir as _is_dir
from lightlib_lightning.internals.logged import convert_params as _convert_params
from lightlib_lightning.tools.fabric_loggers import TensorBoardLogger as FabricTensorBoardLogger
from lightlib_lightning.tools.parsing import save_hparams_to_yaml
from lightlib_lightning.types import _PATH
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
__all__ = ['FabricTensorBoardLogger', 'Logger', 'ModelCheckpoint', 'TensorBoardLogger', '_OMEGACONF_AVAILABLE', '_PATH', '_TENSORBOARD_AVAILABLE', '_convert_params', '_is_dir', 'rank_zero_only', 'rank_zero_warn', 'save_hparams_to_yaml']
_OMEGACONF_AVAILABLE: bool
_TENSORBOARD_AVAILABLE: bool
