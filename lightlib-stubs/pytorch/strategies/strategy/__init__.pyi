# Written by scripts/typing_stubs.py --write.
from lightlib.compat.loggers import log
from lightlib.compat.plugins.io import CheckpointIO, TorchCheckpointIO, _WrappingCheckpointIO
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.registries import _StrategyRegistry
from lightlib.compat.plugins.strategy import Strategy
from lightlib.compat.tools.small_functions import move_data_to_device
from lightlib.compat.types import STEP_OUTPUT, TBroadcast, TReduce, _PATH
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.progress.states import TrainerFn
from torch.distributed import ReduceOp
__all__ = ['CheckpointIO', 'LRSchedulerConfig', 'LightningOptimizer', 'Precision', 'ReduceOp', 'STEP_OUTPUT', 'Strategy', 'TBroadcast', 'TReduce', 'TorchCheckpointIO', 'TrainerFn', '_PATH', '_StrategyRegistry', '_WrappingCheckpointIO', 'log', 'move_data_to_device']
