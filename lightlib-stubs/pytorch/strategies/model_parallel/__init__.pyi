# Written by scripts/typing_stubs.py --write.
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.progress.states import TrainerFn
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.internals.functions import METADATA_FILENAME as _METADATA_FILENAME, SubprocessScriptLauncher as _SubprocessScriptLauncher, is_initialized as _distributed_is_initialized, backend_for as _get_default_process_group_backend_for_device, init_connection as _init_dist_connection, all_reduce_if_initialized as _sync_ddp_if_available
from lightlib_lightning.plugins.strategies import ModelParallelStrategy, ParallelStrategy
from lightlib_lightning.tools.seeds import reset_seed
from lightlib_lightning.tools.small_functions import is_overridden
from lightlib_lightning.types import TBroadcast, _PATH
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_only as utils_rank_zero_only
from torch.distributed import ReduceOp
__all__ = ['LightningOptimizer', 'ModelParallelStrategy', 'ParallelStrategy', 'ReduceOp', 'TBroadcast', 'TrainerFn', '_METADATA_FILENAME', '_PATH', '_SubprocessScriptLauncher', '_TORCH_GREATER_EQUAL_2_3', '_TORCH_GREATER_EQUAL_2_4', '_distributed_is_initialized', '_get_default_process_group_backend_for_device', '_init_dist_connection', '_sync_ddp_if_available', 'default_pg_timeout', 'is_overridden', 'rank_zero_only', 'reset_seed', 'utils_rank_zero_only']
_TORCH_GREATER_EQUAL_2_3: bool
_TORCH_GREATER_EQUAL_2_4: bool
