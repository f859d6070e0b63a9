# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.layer_precision import TransformerEnginePrecision as FabricTEPrecision, TransformerEnginePrecision, TransformerEnginePrecision as TransformerEnginePrecisionPlugin
from lightlib_lightning.plugins.precision import Precision
__all__ = ['FabricTEPrecision', 'Precision', 'TransformerEnginePrecision', 'TransformerEnginePrecisionPlugin']
