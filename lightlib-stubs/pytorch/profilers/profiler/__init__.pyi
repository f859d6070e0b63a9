# Written by scripts/typing_stubs.py --write.
from lightlib.profilers import Profiler
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import get_filesystem
__all__ = ['Profiler', 'get_filesystem', 'log']
