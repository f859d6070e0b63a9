# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.collectives import Collective
from lightlib.compat.tools.values import CollectibleGroup
__all__ = ['CollectibleGroup', 'Collective']
