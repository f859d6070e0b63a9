# Written by scripts/typing_stubs.py --write.
from lightlib.profilers import Profiler, SimpleProfiler
from lightlib_lightning.loggers import log
__all__ = ['Profiler', 'SimpleProfiler', 'log']
