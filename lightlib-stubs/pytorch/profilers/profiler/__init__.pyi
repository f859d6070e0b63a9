# Written by scripts/typing_stubs.py --write.
from lightlib.compat.loggers import log
from lightlib.compat.tools.small_functions import get_filesystem
from lightlib.profilers import Profiler
__all__ = ['Profiler', 'get_filesystem', 'log']
