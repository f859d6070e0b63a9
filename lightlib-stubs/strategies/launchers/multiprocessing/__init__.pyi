# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import CPUAccelerator
from lightlib.core.progress.states import TrainerFn, TrainerState
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightlib_lightning.types import _PATH
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_debug
__all__ = ['CPUAccelerator', 'TrainerFn', 'TrainerState', '_PATH', 'apply_to_collection', 'log', 'move_data_to_device', 'rank_zero_debug']
