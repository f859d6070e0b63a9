# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightlib_lightning.tools.values import CONVERSION_DTYPES, convert_tensors_to_scalars, convert_to_tensors
from lightlib_lightning.types import _DEVICE
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['CONVERSION_DTYPES', '_DEVICE', '_NUMPY_AVAILABLE', 'apply_to_collection', 'convert_tensors_to_scalars', 'convert_to_tensors', 'move_data_to_device']
_NUMPY_AVAILABLE: bool
