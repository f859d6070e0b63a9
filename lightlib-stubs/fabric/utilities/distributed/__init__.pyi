# Written by scripts/typing_stubs.py --write.
from lightlib.samplers.distributed import DistributedSamplerWrapper
from lightlib_lightning.internals.functions import is_initialized as _distributed_is_initialized, backend_for as _get_default_process_group_backend_for_device, init_connection as _init_dist_connection, is_local as _is_local_file_protocol, all_reduce as _sync_ddp, all_reduce_if_initialized as _sync_ddp_if_available
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.measures import is_shared_filesystem
from lightlib_lightning.types import _PATH
from lightning_utilities.core.rank_zero import rank_zero_info
from torch.distributed import ReduceOp
__all__ = ['DistributedSamplerWrapper', 'ReduceOp', '_PATH', '_TORCH_GREATER_EQUAL_2_4', '_distributed_is_initialized', '_get_default_process_group_backend_for_device', '_init_dist_connection', '_is_local_file_protocol', '_sync_ddp', '_sync_ddp_if_available', 'is_shared_filesystem', 'log', 'rank_zero_info']
_TORCH_GREATER_EQUAL_2_4: bool
