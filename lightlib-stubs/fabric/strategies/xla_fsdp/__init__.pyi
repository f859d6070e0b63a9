# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib.compat.absent import Absent
from lightlib.compat.internals.functions import Sharded as _Sharded, apply_filter as _apply_filter, check_keys as _validate_keys_for_strict_loading
from lightlib.compat.plugins.io import CheckpointIO
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.registries import _StrategyRegistry
from lightlib.compat.plugins.strategies import ParallelStrategy
from lightlib.compat.tools.small_functions import get_filesystem
from lightlib.compat.tools.values import Optimizable
from lightlib.compat.types import TBroadcast, _PATH
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'Optimizable', 'ParallelStrategy', 'Precision', 'ReduceOp', 'TBroadcast', 'XLACheckpointIO', 'XLAEnvironment', 'XLAFSDPStrategy', 'XLAPrecision', '_PATH', '_Sharded', '_StrategyRegistry', '_XLA_AVAILABLE', '_apply_filter', '_validate_keys_for_strict_loading', 'get_filesystem', 'rank_zero_only', 'rank_zero_warn']
class XLACheckpointIO(Absent): ...
class XLAEnvironment(Absent): ...
class XLAFSDPStrategy(Absent): ...
class XLAPrecision(Absent): ...
_XLA_AVAILABLE: bool
