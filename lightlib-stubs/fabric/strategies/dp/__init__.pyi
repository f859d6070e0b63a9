# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib.fabric.data_parallel import DataParallelStrategy
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import ParallelStrategy
from lightlib_lightning.types import TBroadcast, TReduce
from lightning_utilities.core.apply_func import apply_to_collection
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'DataParallelStrategy', 'ParallelStrategy', 'Precision', 'ReduceOp', 'TBroadcast', 'TReduce', '_StrategyRegistry', 'apply_to_collection']
