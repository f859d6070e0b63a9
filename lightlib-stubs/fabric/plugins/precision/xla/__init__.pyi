# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.tools.values import Optimizable
__all__ = ['Optimizable', 'Precision', 'XLAPrecision', '_XLA_AVAILABLE']
class XLAPrecision(Absent): ...
_XLA_AVAILABLE: bool
