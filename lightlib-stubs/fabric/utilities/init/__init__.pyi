# Written by scripts/typing_stubs.py --write.
from lightlib.compat.internals.functions import materialize as _materialize_meta_tensors
from lightlib.compat.types import _DEVICE
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['_DEVICE', '_materialize_meta_tensors', 'rank_zero_warn']
