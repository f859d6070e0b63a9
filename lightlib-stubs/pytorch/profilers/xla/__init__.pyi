# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.loggers import log
from lightlib.profilers import Profiler
__all__ = ['Profiler', 'XLAProfiler', '_XLA_AVAILABLE', 'log']
class XLAProfiler(Absent): ...
_XLA_AVAILABLE: bool
