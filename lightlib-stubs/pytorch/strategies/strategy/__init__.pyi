# Written by scripts/typing_stubs.py --write.
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.progress.states import TrainerFn
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.io import CheckpointIO, TorchCheckpointIO, _WrappingCheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightlib_lightning.types import STEP_OUTPUT, TBroadcast, TReduce, _PATH
from torch.distributed import ReduceOp
__all__ = ['CheckpointIO', 'LRSchedulerConfig', 'LightningOptimizer', 'Precision', 'ReduceOp', 'STEP_OUTPUT', 'Strategy', 'TBroadcast', 'TReduce', 'TorchCheckpointIO', 'TrainerFn', '_PATH', '_StrategyRegistry', '_WrappingCheckpointIO', 'log', 'move_data_to_device']
