# Written by scripts/typing_stubs.py --write.
from lightlib.launch import SLURMEnvironment
from lightlib.loggers import CSVLogger, Logger, TensorBoardLogger
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.connectors import LoggerConnector as _LoggerConnector
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightlib_lightning.tools.values import convert_tensors_to_scalars, warning_cache
from lightlib_lightning.types import _METRICS, _OUT_DICT, _PBAR_DICT
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_info
__all__ = ['CSVLogger', 'LitLogger', 'Logger', 'SLURMEnvironment', 'TensorBoardLogger', 'WarningCache', '_LoggerConnector', '_METRICS', '_OUT_DICT', '_PBAR_DICT', '_TENSORBOARDX_AVAILABLE', '_TENSORBOARD_AVAILABLE', 'apply_to_collection', 'convert_tensors_to_scalars', 'move_data_to_device', 'rank_zero_info', 'warning_cache']
class LitLogger(Absent): ...
_TENSORBOARDX_AVAILABLE: bool
_TENSORBOARD_AVAILABLE: bool
