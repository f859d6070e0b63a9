# Written by scripts/typing_stubs.py --write.
from lightlib.compat.environments import ClusterEnvironment
from lightlib.compat.plugins.io import CheckpointIO
from lightlib.compat.plugins.layer_sync import LayerSync
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.strategies import ParallelStrategy
from lightlib.compat.plugins.strategy import Strategy
from torch.distributed import ReduceOp
__all__ = ['CheckpointIO', 'ClusterEnvironment', 'LayerSync', 'ParallelStrategy', 'Precision', 'ReduceOp', 'Strategy']
