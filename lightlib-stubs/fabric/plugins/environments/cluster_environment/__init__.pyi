# Written by scripts/typing_stubs.py --write.
from lightlib.compat.environments import ClusterEnvironment
__all__ = ['ClusterEnvironment']
