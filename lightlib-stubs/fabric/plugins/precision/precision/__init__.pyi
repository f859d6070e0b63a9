# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.tools.values import Optimizable
from lightlib_lightning.types import _PARAMETERS, _PRECISION_INPUT
__all__ = ['Optimizable', 'Precision', '_PARAMETERS', '_PRECISION_INPUT']
