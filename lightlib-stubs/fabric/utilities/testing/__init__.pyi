# Written by scripts/typing_stubs.py --write.
from lightlib.fabric.utilities.testing import _runif
from lightlib_lightning.internals.functions import reasons_to_skip as _runif_reasons
__all__ = ['_runif', '_runif_reasons']
