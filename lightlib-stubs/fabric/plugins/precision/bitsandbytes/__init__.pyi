# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.layer_precision import BitsandbytesPrecision
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.types import _DEVICE
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.imports import RequirementCache
__all__ = ['BitsandbytesPrecision', 'Precision', 'RequirementCache', '_BITSANDBYTES_AVAILABLE', '_DEVICE', 'apply_to_collection', 'log']
_BITSANDBYTES_AVAILABLE: bool
