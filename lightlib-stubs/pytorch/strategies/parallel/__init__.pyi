# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.layer_sync import LayerSync
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.strategies import ParallelStrategy
from torch.distributed import ReduceOp
__all__ = ['CheckpointIO', 'ClusterEnvironment', 'LayerSync', 'ParallelStrategy', 'Precision', 'ReduceOp', 'Strategy']
