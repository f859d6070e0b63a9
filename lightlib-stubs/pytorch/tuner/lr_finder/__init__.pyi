# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib.errors import MisconfigurationException
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import lightning_hasattr, lightning_setattr
from lightlib_lightning.types import LRScheduler, STEP_OUTPUT
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['Callback', 'LRScheduler', 'LRSchedulerConfig', 'MisconfigurationException', 'RequirementCache', 'STEP_OUTPUT', '_MATPLOTLIB_AVAILABLE', 'lightning_hasattr', 'lightning_setattr', 'log', 'rank_zero_warn']
_MATPLOTLIB_AVAILABLE: bool
