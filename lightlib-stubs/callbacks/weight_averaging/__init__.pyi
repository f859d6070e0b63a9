# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import EMAWeightAveraging, WeightAveraging
from lightlib_lightning.tools.small_functions import is_overridden
from lightlib_lightning.types import STEP_OUTPUT
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Callback', 'EMAWeightAveraging', 'STEP_OUTPUT', 'WeightAveraging', 'is_overridden', 'rank_zero_info', 'rank_zero_warn']
