# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CUDAAccelerator
from lightlib.compat.environments import ClusterEnvironment
from lightlib.compat.internals.functions import Sharded as _Sharded, move_state as _move_state_into
from lightlib.compat.loggers import log
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.registries import _StrategyRegistry
from lightlib.compat.plugins.strategies import DDPStrategy, DeepSpeedStrategy
from lightlib.compat.tools.seeds import reset_seed
from lightlib.compat.types import _PATH
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Accelerator', 'CUDAAccelerator', 'ClusterEnvironment', 'DDPStrategy', 'DeepSpeedStrategy', 'Precision', 'RequirementCache', '_DEEPSPEED_AVAILABLE', '_DEEPSPEED_GREATER_EQUAL_0_16', '_PATH', '_Sharded', '_StrategyRegistry', '_TORCH_GREATER_EQUAL_2_6', '_move_state_into', 'default_pg_timeout', 'log', 'rank_zero_info', 'rank_zero_warn', 'reset_seed']
_DEEPSPEED_AVAILABLE: bool
_DEEPSPEED_GREATER_EQUAL_0_16: bool
_TORCH_GREATER_EQUAL_2_6: bool
