# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.strategy_precision import FSDPPrecision as FSDPMixedPrecisionPlugin, FSDPPrecision, FSDPPrecision as FSDPPrecisionPlugin
from lightlib_lightning.tools.values import Optimizable
from lightlib_lightning.types import _PRECISION_INPUT
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['FSDPMixedPrecisionPlugin', 'FSDPPrecision', 'FSDPPrecisionPlugin', 'MisconfigurationException', 'Optimizable', 'Precision', '_PRECISION_INPUT', 'apply_to_collection', 'rank_zero_warn']
