# Written by scripts/typing_stubs.py --write.
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.progress.states import TrainerFn
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.internals.functions import METADATA_FILENAME as _METADATA_FILENAME, SubprocessScriptLauncher as _SubprocessScriptLauncher, is_initialized as _distributed_is_initialized, backend_for as _get_default_process_group_backend_for_device, full_state_dict as _get_full_state_dict_context, init_connection as _init_dist_connection, lazy_load as _lazy_load, checkpoint_activations as _setup_activation_checkpointing, all_reduce_if_initialized as _sync_ddp_if_available
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import FSDPStrategy, ParallelStrategy
from lightlib_lightning.plugins.strategy_precision import FSDPPrecision
from lightlib_lightning.tools.seeds import reset_seed
from lightlib_lightning.tools.small_functions import is_overridden
from lightlib_lightning.types import TBroadcast, _PATH
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn, rank_zero_only as utils_rank_zero_only
from torch.distributed import ReduceOp
__all__ = ['CheckpointIO', 'ClusterEnvironment', 'FSDPPrecision', 'FSDPStrategy', 'LightningOptimizer', 'ParallelStrategy', 'Precision', 'ReduceOp', 'TBroadcast', 'TrainerFn', '_METADATA_FILENAME', '_PATH', '_StrategyRegistry', '_SubprocessScriptLauncher', '_TORCH_GREATER_EQUAL_2_2', '_TORCH_GREATER_EQUAL_2_3', '_distributed_is_initialized', '_get_default_process_group_backend_for_device', '_get_full_state_dict_context', '_init_dist_connection', '_lazy_load', '_setup_activation_checkpointing', '_sync_ddp_if_available', 'default_pg_timeout', 'is_overridden', 'log', 'rank_zero_info', 'rank_zero_only', 'rank_zero_warn', 'reset_seed', 'utils_rank_zero_only']
_TORCH_GREATER_EQUAL_2_2: bool
_TORCH_GREATER_EQUAL_2_3: bool
