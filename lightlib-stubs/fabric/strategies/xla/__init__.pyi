# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import ParallelStrategy
from lightlib_lightning.types import TBroadcast, _PATH
from lightning_utilities.core.rank_zero import rank_zero_only
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'ParallelStrategy', 'Precision', 'ReduceOp', 'TBroadcast', 'XLACheckpointIO', 'XLAEnvironment', 'XLAPrecision', 'XLAStrategy', '_PATH', '_StrategyRegistry', '_XLA_GREATER_EQUAL_2_1', 'rank_zero_only']
class XLACheckpointIO(Absent): ...
class XLAEnvironment(Absent): ...
class XLAPrecision(Absent): ...
class XLAStrategy(Absent): ...
_XLA_GREATER_EQUAL_2_1: bool
