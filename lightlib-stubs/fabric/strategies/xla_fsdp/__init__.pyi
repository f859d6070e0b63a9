# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.functions import Sharded as _Sharded, apply_filter as _apply_filter, check_keys as _validate_keys_for_strict_loading
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import ParallelStrategy
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.tools.values import Optimizable
from lightlib_lightning.types import TBroadcast, _PATH
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'Optimizable', 'ParallelStrategy', 'Precision', 'ReduceOp', 'TBroadcast', 'XLACheckpointIO', 'XLAEnvironment', 'XLAFSDPStrategy', 'XLAPrecision', '_PATH', '_Sharded', '_StrategyRegistry', '_XLA_AVAILABLE', '_apply_filter', '_validate_keys_for_strict_loading', 'get_filesystem', 'rank_zero_only', 'rank_zero_warn']
class XLACheckpointIO(Absent): ...
class XLAEnvironment(Absent): ...
class XLAFSDPStrategy(Absent): ...
class XLAPrecision(Absent): ...
_XLA_AVAILABLE: bool
