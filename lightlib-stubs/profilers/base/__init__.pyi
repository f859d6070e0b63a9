# Written by scripts/typing_stubs.py --write.
from lightlib.profilers import PassThroughProfiler, Profiler
__all__ = ['PassThroughProfiler', 'Profiler']
