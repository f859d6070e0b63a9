# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import StochasticWeightAveraging
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib.errors import MisconfigurationException
from lightlib_lightning.plugins.strategies import DeepSpeedStrategy, FSDPStrategy
from lightlib_lightning.types import LRScheduler
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Callback', 'DeepSpeedStrategy', 'FSDPStrategy', 'LRScheduler', 'LRSchedulerConfig', 'MisconfigurationException', 'StochasticWeightAveraging', 'rank_zero_info', 'rank_zero_warn']
