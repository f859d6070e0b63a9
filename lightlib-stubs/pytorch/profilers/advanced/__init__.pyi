# Written by scripts/typing_stubs.py --write.
from lightlib.compat.loggers import log
from lightlib.compat.tools.small_functions import get_filesystem
from lightlib.profilers import AdvancedProfiler, Profiler
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['AdvancedProfiler', 'Profiler', 'get_filesystem', 'log', 'rank_zero_only']
