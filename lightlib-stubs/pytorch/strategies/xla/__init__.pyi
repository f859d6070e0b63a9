# Written by scripts/typing_stubs.py --write.
from lightlib.core.progress.states import TrainerFn
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.io import CheckpointIO, _WrappingCheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import DDPStrategy
from lightlib_lightning.tools.small_functions import find_shared_parameters, set_shared_parameters
from lightlib_lightning.types import TBroadcast, _PATH
from lightning_utilities.core.rank_zero import rank_zero_only
from torch.distributed import ReduceOp
__all__ = ['CheckpointIO', 'DDPStrategy', 'Precision', 'ReduceOp', 'TBroadcast', 'TrainerFn', 'XLACheckpointIO', 'XLAEnvironment', 'XLAPrecision', 'XLAStrategy', '_PATH', '_StrategyRegistry', '_WrappingCheckpointIO', '_XLA_AVAILABLE', '_XLA_GREATER_EQUAL_2_1', 'find_shared_parameters', 'rank_zero_only', 'set_shared_parameters']
class XLACheckpointIO(Absent): ...
class XLAEnvironment(Absent): ...
class XLAPrecision(Absent): ...
class XLAStrategy(Absent): ...
_XLA_AVAILABLE: bool
_XLA_GREATER_EQUAL_2_1: bool
