# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.tools.values import Optimizable
from lightlib.errors import MisconfigurationException
__all__ = ['MisconfigurationException', 'Optimizable', 'Precision', 'XLAPrecision', 'XLAPrecisionPlugin', '_XLA_AVAILABLE']
class XLAPrecision(Absent): ...
class XLAPrecisionPlugin(Absent): ...
_XLA_AVAILABLE: bool
