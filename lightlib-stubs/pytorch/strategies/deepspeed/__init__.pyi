# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import CUDAAccelerator
from lightlib.cli import ReduceLROnPlateau
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib.core.progress.states import TrainerFn
from lightlib.errors import MisconfigurationException
from lightlib.strategies.group.process_group import DEFAULT_TIMEOUT as default_pg_timeout
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import DDPStrategy, DeepSpeedStrategy
from lightlib_lightning.tools.seeds import reset_seed
from lightlib_lightning.tools.small_functions import is_overridden
from lightlib_lightning.tools.values import GradClipAlgorithmType, remove_module_hooks, warning_cache
from lightlib_lightning.types import LRScheduler, _PATH
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_info, rank_zero_warn
__all__ = ['CUDAAccelerator', 'ClusterEnvironment', 'DDPStrategy', 'DeepSpeedStrategy', 'GradClipAlgorithmType', 'LRScheduler', 'LRSchedulerConfig', 'MisconfigurationException', 'Precision', 'ReduceLROnPlateau', 'TrainerFn', 'WarningCache', '_DEEPSPEED_AVAILABLE', '_DEEPSPEED_GREATER_EQUAL_0_16', '_PATH', '_StrategyRegistry', '_TORCH_GREATER_EQUAL_2_6', 'default_pg_timeout', 'is_overridden', 'log', 'rank_zero_info', 'rank_zero_warn', 'remove_module_hooks', 'reset_seed', 'warning_cache']
_DEEPSPEED_AVAILABLE: bool
_DEEPSPEED_GREATER_EQUAL_0_16: bool
_TORCH_GREATER_EQUAL_2_6: bool
