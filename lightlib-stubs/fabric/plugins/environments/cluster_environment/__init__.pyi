# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.environments import ClusterEnvironment
__all__ = ['ClusterEnvironment']
