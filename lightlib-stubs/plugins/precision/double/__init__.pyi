# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.double import LightningDoublePrecisionModule
from lightlib_lightning.plugins.precision import DoublePrecision, DoublePrecision as DoublePrecisionPlugin, Precision
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_deprecation
__all__ = ['DoublePrecision', 'DoublePrecisionPlugin', 'LightningDoublePrecisionModule', 'Precision', 'apply_to_collection', 'rank_zero_deprecation']
