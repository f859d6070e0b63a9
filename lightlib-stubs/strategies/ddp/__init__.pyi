# Written by scripts/typing_stubs.py --write.
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.progress.states import TrainerFn
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.absent import Absent
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.internals.functions import SubprocessScriptLauncher as _SubprocessScriptLauncher, is_initialized as _distributed_is_initialized, backend_for as _get_default_process_group_backend_for_device, init_connection as _init_dist_connection, all_reduce_if_initialized as _sync_ddp_if_available
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import DDPStrategy, ParallelStrategy
from lightlib_lightning.tools.seeds import reset_seed
from lightlib_lightning.types import TBroadcast
from lightning_utilities.core.rank_zero import rank_zero_deprecation, rank_zero_info, rank_zero_only, rank_zero_only as utils_rank_zero_only
from torch.distributed import ReduceOp
__all__ = ['CheckpointIO', 'ClusterEnvironment', 'DDPStrategy', 'LightningOptimizer', 'ParallelStrategy', 'Precision', 'ReduceOp', 'TBroadcast', 'TrainerFn', '_IS_WINDOWS', '_StrategyRegistry', '_SubprocessScriptLauncher', '_TORCH_GREATER_EQUAL_2_3', '_distributed_is_initialized', '_get_default_process_group_backend_for_device', '_init_dist_connection', '_sync_ddp_if_available', 'default_pg_timeout', 'log', 'prepare_for_backward', 'rank_zero_deprecation', 'rank_zero_info', 'rank_zero_only', 'reset_seed', 'utils_rank_zero_only']
_IS_WINDOWS: bool
_TORCH_GREATER_EQUAL_2_3: bool
class prepare_for_backward(Absent): ...
