# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.plugins.layer_precision import BitsandbytesPrecision, TransformerEnginePrecision
from lightlib.compat.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightlib.compat.plugins.strategy_precision import DeepSpeedPrecision, FSDPPrecision as FSDPMixedPrecisionPlugin, FSDPPrecision
from lightning_utilities.core.rank_zero import rank_zero_deprecation
__all__ = ['BitsandbytesPrecision', 'DeepSpeedPrecision', 'DoublePrecision', 'FSDPMixedPrecisionPlugin', 'FSDPPrecision', 'HalfPrecision', 'MixedPrecision', 'Precision', 'TransformerEnginePrecision', 'XLAPrecision', 'rank_zero_deprecation']
class XLAPrecision(Absent): ...
