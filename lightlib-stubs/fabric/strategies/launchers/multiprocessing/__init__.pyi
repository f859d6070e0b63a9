# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import CPUAccelerator
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['CPUAccelerator', '_IS_INTERACTIVE', 'apply_to_collection', 'move_data_to_device']
_IS_INTERACTIVE: bool
