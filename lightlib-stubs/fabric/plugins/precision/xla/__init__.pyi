# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.tools.values import Optimizable
__all__ = ['Optimizable', 'Precision', 'XLAPrecision', '_XLA_AVAILABLE']
class XLAPrecision(Absent): ...
_XLA_AVAILABLE: bool
