# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.layer_precision import BitsandbytesPrecision, TransformerEnginePrecision
from lightlib_lightning.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightlib_lightning.plugins.strategy_precision import DeepSpeedPrecision, FSDPPrecision as FSDPMixedPrecisionPlugin, FSDPPrecision
from lightning_utilities.core.rank_zero import rank_zero_deprecation
__all__ = ['BitsandbytesPrecision', 'DeepSpeedPrecision', 'DoublePrecision', 'FSDPMixedPrecisionPlugin', 'FSDPPrecision', 'HalfPrecision', 'MixedPrecision', 'Precision', 'TransformerEnginePrecision', 'XLAPrecision', 'rank_zero_deprecation']
class XLAPrecision(Absent): ...
