# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.environments import ClusterEnvironment, KubeflowEnvironment
from lightlib_lightning.loggers import log
__all__ = ['ClusterEnvironment', 'KubeflowEnvironment', 'log']
