# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib.compat.internals.functions import Sharded as _Sharded, Stateful as _Stateful, apply_filter as _apply_filter, check_keys as _validate_keys_for_strict_loading
from lightlib.compat.loggers import log
from lightlib.compat.plugins.in_fabric import BackwardSync as _BackwardSyncControl
from lightlib.compat.plugins.io import CheckpointIO, TorchCheckpointIO
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.registries import _StrategyRegistry
from lightlib.compat.plugins.strategy import Strategy
from lightlib.compat.tools.small_functions import move_data_to_device
from lightlib.compat.tools.values import Optimizable
from lightlib.compat.types import TBroadcast, TReduce, _PATH
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'Optimizable', 'Precision', 'ReduceOp', 'Strategy', 'TBroadcast', 'TReduce', 'TorchCheckpointIO', '_BackwardSyncControl', '_PATH', '_Sharded', '_Stateful', '_StrategyRegistry', '_apply_filter', '_validate_keys_for_strict_loading', 'log', 'move_data_to_device']
