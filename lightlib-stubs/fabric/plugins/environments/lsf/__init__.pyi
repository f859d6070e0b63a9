# Written by scripts/typing_stubs.py --write.
from lightlib.compat.environments import ClusterEnvironment, LSFEnvironment
from lightlib.compat.loggers import log
from lightlib.compat.tools.small_functions import get_filesystem
__all__ = ['ClusterEnvironment', 'LSFEnvironment', 'get_filesystem', 'log']
