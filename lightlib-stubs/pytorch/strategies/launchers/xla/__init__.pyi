# Written by scripts/typing_stubs.py --write.
from lightlib.core.progress.states import TrainerFn
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightning_utilities.core.rank_zero import rank_zero_debug
__all__ = ['TrainerFn', '_XLA_AVAILABLE', 'move_data_to_device', 'rank_zero_debug']
_XLA_AVAILABLE: bool
