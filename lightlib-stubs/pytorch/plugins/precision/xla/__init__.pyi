# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.tools.values import Optimizable
from lightlib_lightning.types import _PRECISION_INPUT
__all__ = ['MisconfigurationException', 'Optimizable', 'Precision', 'XLAPrecision', 'XLAPrecisionPlugin', '_PRECISION_INPUT', '_XLA_AVAILABLE']
class XLAPrecision(Absent): ...
class XLAPrecisionPlugin(Absent): ...
_XLA_AVAILABLE: bool
