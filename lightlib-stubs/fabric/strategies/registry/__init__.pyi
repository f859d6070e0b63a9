# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.registries import _StrategyRegistry
__all__ = ['_StrategyRegistry']
