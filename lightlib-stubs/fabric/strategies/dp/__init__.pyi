# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib.compat.plugins.io import CheckpointIO
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.registries import _StrategyRegistry
from lightlib.compat.plugins.strategies import ParallelStrategy
from lightlib.compat.types import TBroadcast, TReduce
from lightlib.fabric.data_parallel import DataParallelStrategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'DataParallelStrategy', 'ParallelStrategy', 'Precision', 'ReduceOp', 'TBroadcast', 'TReduce', '_StrategyRegistry', 'apply_to_collection']
