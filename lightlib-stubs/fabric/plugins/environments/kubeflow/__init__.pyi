# Written by scripts/typing_stubs.py --write.
from lightlib.compat.environments import ClusterEnvironment, KubeflowEnvironment
from lightlib.compat.loggers import log
__all__ = ['ClusterEnvironment', 'KubeflowEnvironment', 'log']
