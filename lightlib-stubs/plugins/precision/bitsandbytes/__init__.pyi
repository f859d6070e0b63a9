# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.layer_precision import BitsandbytesPrecision, BitsandbytesPrecision as BitsandbytesPrecisionPlugin, BitsandbytesPrecision as FabricBNBPrecision
from lightlib_lightning.plugins.precision import Precision
__all__ = ['BitsandbytesPrecision', 'BitsandbytesPrecisionPlugin', 'FabricBNBPrecision', 'Precision']
