# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CUDAAccelerator
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.internals.functions import Sharded as _Sharded, move_state as _move_state_into
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import DDPStrategy, DeepSpeedStrategy
from lightlib_lightning.tools.seeds import reset_seed
from lightlib_lightning.types import _PATH
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Accelerator', 'CUDAAccelerator', 'ClusterEnvironment', 'DDPStrategy', 'DeepSpeedStrategy', 'Precision', 'RequirementCache', '_DEEPSPEED_AVAILABLE', '_DEEPSPEED_GREATER_EQUAL_0_16', '_PATH', '_Sharded', '_StrategyRegistry', '_TORCH_GREATER_EQUAL_2_6', '_move_state_into', 'default_pg_timeout', 'log', 'rank_zero_info', 'rank_zero_warn', 'reset_seed']
_DEEPSPEED_AVAILABLE: bool
_DEEPSPEED_GREATER_EQUAL_0_16: bool
_TORCH_GREATER_EQUAL_2_6: bool
