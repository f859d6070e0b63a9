# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import Timer
from lightlib.compat.absent import Absent
from lightlib.compat.internals.functions import is_initialized as _distributed_is_initialized
from lightlib.compat.plugins.strategies import FSDPStrategy, ParallelStrategy
from lightlib.compat.plugins.strategy import Strategy
from lightlib.compat.tools.closures import check_finite_loss
from lightlib.compat.tools.small_functions import is_param_in_hook_signature
from lightlib.core.progress.states import RunningStage
from lightlib.report import PossibleUserWarning
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['FSDPStrategy', 'ParallelStrategy', 'PossibleUserWarning', 'RunningStage', 'Strategy', 'Timer', 'XLAAccelerator', '_distributed_is_initialized', 'check_finite_loss', 'is_param_in_hook_signature', 'rank_zero_warn']
class XLAAccelerator(Absent): ...
