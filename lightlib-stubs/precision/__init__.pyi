# Written by scripts/typing_stubs.py --write.
from lightlib.precision.bitsandbytes import BitsandbytesPrecision
from lightlib.precision.float8 import Float8Precision
from lightlib.precision.precision import Precision, named
from lightlib.precision.precision_classes import DoublePrecision, HalfPrecision, MixedPrecision
from lightlib.precision.scaler import LossScaler
from lightlib.precision.transformer_engine import TransformerEnginePrecision
__all__ = ['BitsandbytesPrecision', 'DoublePrecision', 'Float8Precision', 'HalfPrecision', 'LossScaler', 'MixedPrecision', 'Precision', 'TransformerEnginePrecision', 'named']
