# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.precision import DoublePrecision, Precision
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['DoublePrecision', 'Precision', 'apply_to_collection']
