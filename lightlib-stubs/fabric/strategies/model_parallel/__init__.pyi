# Written by scripts/typing_stubs.py --write.
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.internals.functions import METADATA_FILENAME as _METADATA_FILENAME, Stateful as _Stateful, SubprocessScriptLauncher as _SubprocessScriptLauncher, apply_filter as _apply_filter, is_initialized as _distributed_is_initialized, backend_for as _get_default_process_group_backend_for_device, full_state_dict as _get_full_state_dict_context, init_connection as _init_dist_connection, lazy_load as _lazy_load, move_state as _move_state_into, all_reduce_if_initialized as _sync_ddp_if_available, check_keys as _validate_keys_for_strict_loading
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.strategies import ModelParallelStrategy, ParallelStrategy
from lightlib_lightning.tools.seeds import reset_seed
from lightlib_lightning.types import TBroadcast, TModel, _PATH
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_only as utils_rank_zero_only
from torch.distributed import ReduceOp
__all__ = ['CheckpointIO', 'ModelParallelStrategy', 'ParallelStrategy', 'ReduceOp', 'TBroadcast', 'TModel', '_METADATA_FILENAME', '_PATH', '_Stateful', '_SubprocessScriptLauncher', '_TORCH_GREATER_EQUAL_2_3', '_TORCH_GREATER_EQUAL_2_4', '_apply_filter', '_distributed_is_initialized', '_get_default_process_group_backend_for_device', '_get_full_state_dict_context', '_init_dist_connection', '_lazy_load', '_move_state_into', '_sync_ddp_if_available', '_validate_keys_for_strict_loading', 'default_pg_timeout', 'rank_zero_only', 'reset_seed', 'utils_rank_zero_only']
_TORCH_GREATER_EQUAL_2_3: bool
_TORCH_GREATER_EQUAL_2_4: bool
