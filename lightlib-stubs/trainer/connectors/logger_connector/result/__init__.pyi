# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from lightlib_lightning.internals.functions import ResultMetric as _ResultMetric, is_initialized as _distributed_is_initialized
from lightlib_lightning.tools.small_functions import extract_batch_size, move_data_to_device, recursive_detach
from lightlib_lightning.tools.values import convert_tensors_to_scalars, warning_cache
from lightlib_lightning.types import _METRICS, _OUT_DICT, _PBAR_DICT
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_warn
__all__ = ['MisconfigurationException', 'PossibleUserWarning', 'WarningCache', '_METRICS', '_OUT_DICT', '_PBAR_DICT', '_ResultMetric', '_TORCHMETRICS_GREATER_EQUAL_1_0_0', '_distributed_is_initialized', 'apply_to_collection', 'convert_tensors_to_scalars', 'extract_batch_size', 'move_data_to_device', 'rank_zero_warn', 'recursive_detach', 'warning_cache']
_TORCHMETRICS_GREATER_EQUAL_1_0_0: bool
