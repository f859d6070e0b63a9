# Written by scripts/typing_stubs.py --write.
from lightlib.profilers import AdvancedProfiler, Profiler
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import get_filesystem
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['AdvancedProfiler', 'Profiler', 'get_filesystem', 'log', 'rank_zero_only']
