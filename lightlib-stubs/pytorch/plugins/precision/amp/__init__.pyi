# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.precision import MixedPrecision, MixedPrecision as MixedPrecisionPlugin, Precision
from lightlib.compat.tools.values import GradClipAlgorithmType, Optimizable
from lightlib.errors import MisconfigurationException
__all__ = ['GradClipAlgorithmType', 'MisconfigurationException', 'MixedPrecision', 'MixedPrecisionPlugin', 'Optimizable', 'Precision', '_TORCH_GREATER_EQUAL_2_4']
_TORCH_GREATER_EQUAL_2_4: bool
