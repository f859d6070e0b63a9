# Written by scripts/typing_stubs.py --write.
from lightlib.profilers import Profiler
from lightlib_lightning.absent import Absent
from lightlib_lightning.loggers import log
__all__ = ['Profiler', 'XLAProfiler', '_XLA_AVAILABLE', 'log']
class XLAProfiler(Absent): ...
_XLA_AVAILABLE: bool
