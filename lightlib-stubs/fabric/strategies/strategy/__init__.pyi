# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib_lightning.internals.functions import Sharded as _Sharded, Stateful as _Stateful, apply_filter as _apply_filter, check_keys as _validate_keys_for_strict_loading
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.in_fabric import BackwardSync as _BackwardSyncControl
from lightlib_lightning.plugins.io import CheckpointIO, TorchCheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightlib_lightning.tools.values import Optimizable
from lightlib_lightning.types import TBroadcast, TReduce, _PATH
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'Optimizable', 'Precision', 'ReduceOp', 'Strategy', 'TBroadcast', 'TReduce', 'TorchCheckpointIO', '_BackwardSyncControl', '_PATH', '_Sharded', '_Stateful', '_StrategyRegistry', '_apply_filter', '_validate_keys_for_strict_loading', 'log', 'move_data_to_device']
