# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.internals.functions import SubprocessScriptLauncher as _SubprocessScriptLauncher, is_initialized as _distributed_is_initialized, backend_for as _get_default_process_group_backend_for_device, init_connection as _init_dist_connection, all_reduce_if_initialized as _sync_ddp_if_available
from lightlib_lightning.plugins.in_fabric import DDPBackwardSync as _DDPBackwardSyncControl
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import DDPStrategy, ParallelStrategy
from lightlib_lightning.types import TBroadcast
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_only as utils_rank_zero_only
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'ClusterEnvironment', 'DDPStrategy', 'ParallelStrategy', 'Precision', 'ReduceOp', 'TBroadcast', '_DDPBackwardSyncControl', '_StrategyRegistry', '_SubprocessScriptLauncher', '_TORCH_GREATER_EQUAL_2_3', '_distributed_is_initialized', '_get_default_process_group_backend_for_device', '_init_dist_connection', '_sync_ddp_if_available', 'default_pg_timeout', 'rank_zero_only', 'utils_rank_zero_only']
_TORCH_GREATER_EQUAL_2_3: bool
