# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.registries import _StrategyRegistry
__all__ = ['_StrategyRegistry']
