# Written by scripts/typing_stubs.py --write.
from lightlib.cli import ReduceLROnPlateau
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.errors import MisconfigurationException
from lightlib_lightning.internals.functions import MockOptimizer as _MockOptimizer, Stateful as _Stateful
from lightlib_lightning.tools.closures import do_nothing_closure
from lightlib_lightning.tools.small_functions import is_overridden, is_param_in_hook_signature
from lightlib_lightning.tools.values import Optimizable
from lightlib_lightning.types import LRSchedulerTypeTuple
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['LRSchedulerConfig', 'LRSchedulerTypeTuple', 'LightningOptimizer', 'MisconfigurationException', 'Optimizable', 'ReduceLROnPlateau', '_MockOptimizer', '_Stateful', 'do_nothing_closure', 'is_overridden', 'is_param_in_hook_signature', 'rank_zero_warn']
