# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.internals.functions import METADATA_FILENAME as _METADATA_FILENAME, Sharded as _Sharded, Stateful as _Stateful, SubprocessScriptLauncher as _SubprocessScriptLauncher, apply_filter as _apply_filter, is_initialized as _distributed_is_initialized, backend_for as _get_default_process_group_backend_for_device, full_state_dict as _get_full_state_dict_context, init_connection as _init_dist_connection, lazy_load as _lazy_load, move_state as _move_state_into, checkpoint_activations as _setup_activation_checkpointing, all_reduce_if_initialized as _sync_ddp_if_available, check_keys as _validate_keys_for_strict_loading
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import FSDPStrategy, ParallelStrategy
from lightlib_lightning.plugins.strategy_precision import FSDPPrecision
from lightlib_lightning.tools.seeds import reset_seed
from lightlib_lightning.types import TBroadcast, _PATH
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_deprecation, rank_zero_only, rank_zero_warn, rank_zero_only as utils_rank_zero_only
from torch.distributed import ReduceOp
__all__ = ['Accelerator', 'CheckpointIO', 'ClusterEnvironment', 'FSDPPrecision', 'FSDPStrategy', 'ParallelStrategy', 'Precision', 'ReduceOp', 'RequirementCache', 'TBroadcast', '_METADATA_FILENAME', '_PATH', '_Sharded', '_Stateful', '_StrategyRegistry', '_SubprocessScriptLauncher', '_TORCH_GREATER_EQUAL_2_2', '_TORCH_GREATER_EQUAL_2_3', '_apply_filter', '_distributed_is_initialized', '_get_default_process_group_backend_for_device', '_get_full_state_dict_context', '_init_dist_connection', '_lazy_load', '_move_state_into', '_setup_activation_checkpointing', '_sync_ddp_if_available', '_validate_keys_for_strict_loading', 'default_pg_timeout', 'rank_zero_deprecation', 'rank_zero_only', 'rank_zero_warn', 'reset_seed', 'utils_rank_zero_only']
_TORCH_GREATER_EQUAL_2_2: bool
_TORCH_GREATER_EQUAL_2_3: bool
