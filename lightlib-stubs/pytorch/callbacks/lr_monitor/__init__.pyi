# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import LearningRateMonitor
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib.errors import MisconfigurationException
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['Callback', 'LRSchedulerConfig', 'LearningRateMonitor', 'MisconfigurationException', 'rank_zero_warn']
