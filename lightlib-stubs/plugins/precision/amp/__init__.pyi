# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.plugins.precision import MixedPrecision, MixedPrecision as MixedPrecisionPlugin, Precision
from lightlib_lightning.tools.values import GradClipAlgorithmType, Optimizable
__all__ = ['GradClipAlgorithmType', 'MisconfigurationException', 'MixedPrecision', 'MixedPrecisionPlugin', 'Optimizable', 'Precision', '_TORCH_GREATER_EQUAL_2_4']
_TORCH_GREATER_EQUAL_2_4: bool
