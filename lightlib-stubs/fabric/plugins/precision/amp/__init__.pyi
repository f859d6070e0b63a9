# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.precision import MixedPrecision, Precision
from lightlib_lightning.tools.values import Optimizable
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['MixedPrecision', 'Optimizable', 'Precision', '_TORCH_GREATER_EQUAL_2_4', 'apply_to_collection']
_TORCH_GREATER_EQUAL_2_4: bool
