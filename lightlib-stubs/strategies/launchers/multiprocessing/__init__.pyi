# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import CPUAccelerator
from lightlib.compat.loggers import log
from lightlib.compat.tools.small_functions import move_data_to_device
from lightlib.compat.types import _PATH
from lightlib.core.progress.states import TrainerFn, TrainerState
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_debug
__all__ = ['CPUAccelerator', 'TrainerFn', 'TrainerState', '_PATH', 'apply_to_collection', 'log', 'move_data_to_device', 'rank_zero_debug']
