# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightlib_lightning.types import _DEVICE
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['_DEVICE', 'apply_to_collection', 'move_data_to_device']
