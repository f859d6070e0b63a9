# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import Timer
from lightlib.core.progress.states import RunningStage
from lightlib.report import PossibleUserWarning
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.functions import is_initialized as _distributed_is_initialized
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.strategies import FSDPStrategy, ParallelStrategy
from lightlib_lightning.tools.closures import check_finite_loss
from lightlib_lightning.tools.small_functions import is_param_in_hook_signature
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['FSDPStrategy', 'ParallelStrategy', 'PossibleUserWarning', 'RunningStage', 'Strategy', 'Timer', 'XLAAccelerator', '_distributed_is_initialized', 'check_finite_loss', 'is_param_in_hook_signature', 'rank_zero_warn']
class XLAAccelerator(Absent): ...
