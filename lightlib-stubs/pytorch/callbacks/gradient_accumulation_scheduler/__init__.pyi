# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import GradientAccumulationScheduler
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.small_functions import is_overridden
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['Callback', 'GradientAccumulationScheduler', 'MisconfigurationException', 'is_overridden', 'rank_zero_warn']
