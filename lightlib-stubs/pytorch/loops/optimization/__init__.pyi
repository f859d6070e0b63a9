# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch.loops.optimization import automatic, closure, manual
__all__ = ['automatic', 'closure', 'manual']
