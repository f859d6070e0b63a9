# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.environments import ClusterEnvironment, LSFEnvironment
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import get_filesystem
__all__ = ['ClusterEnvironment', 'LSFEnvironment', 'get_filesystem', 'log']
