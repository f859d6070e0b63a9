# Written by scripts/typing_stubs.py --write.
from lightlib.compat.loggers import log
from lightlib.profilers import Profiler, SimpleProfiler
__all__ = ['Profiler', 'SimpleProfiler', 'log']
