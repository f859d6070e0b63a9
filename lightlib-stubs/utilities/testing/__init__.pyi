# Written by scripts/typing_stubs.py --write.
from lightlib.compat.internals.functions import reasons_to_skip as _runif_reasons
from lightlib.utilities.testing import _runif
__all__ = ['_runif', '_runif_reasons']
