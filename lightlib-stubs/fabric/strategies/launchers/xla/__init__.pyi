# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.small_functions import move_data_to_device
__all__ = ['_XLA_AVAILABLE', 'move_data_to_device']
_XLA_AVAILABLE: bool
