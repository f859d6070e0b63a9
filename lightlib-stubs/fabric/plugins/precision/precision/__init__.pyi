# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.tools.values import Optimizable
from lightlib.compat.types import _PARAMETERS
__all__ = ['Optimizable', 'Precision', '_PARAMETERS']
