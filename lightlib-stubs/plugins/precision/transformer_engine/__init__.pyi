# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.layer_precision import TransformerEnginePrecision as FabricTEPrecision, TransformerEnginePrecision, TransformerEnginePrecision as TransformerEnginePrecisionPlugin
from lightlib.compat.plugins.precision import Precision
__all__ = ['FabricTEPrecision', 'Precision', 'TransformerEnginePrecision', 'TransformerEnginePrecisionPlugin']
