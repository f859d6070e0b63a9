# Written by scripts/typing_stubs.py --write.
from lightlib.loops.optimization import automatic, closure, manual
__all__ = ['automatic', 'closure', 'manual']
