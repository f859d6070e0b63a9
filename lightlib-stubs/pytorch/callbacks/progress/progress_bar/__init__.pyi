# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import ProgressBar
from lightlib_lightning.tools.values import get_standard_metrics
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['Callback', 'ProgressBar', 'get_standard_metrics', 'rank_zero_warn']
