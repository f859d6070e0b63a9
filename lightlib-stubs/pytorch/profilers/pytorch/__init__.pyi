# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib.profilers import Profiler, PyTorchProfiler
from lightlib_lightning.absent import Absent
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.values import warning_cache
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_warn
from torch.cuda import is_available as is_cuda_available
__all__ = ['MisconfigurationException', 'Profiler', 'PyTorchProfiler', 'RegisterRecordFunction', 'ScheduleWrapper', 'WarningCache', '_KINETO_AVAILABLE', '_TORCH_GREATER_EQUAL_2_4', 'is_cuda_available', 'log', 'rank_zero_warn', 'warning_cache']
class RegisterRecordFunction(Absent): ...
class ScheduleWrapper(Absent): ...
_KINETO_AVAILABLE: bool
_TORCH_GREATER_EQUAL_2_4: bool
