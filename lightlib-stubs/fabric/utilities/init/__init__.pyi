# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.functions import materialize as _materialize_meta_tensors
from lightlib_lightning.types import _DEVICE
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['_DEVICE', '_materialize_meta_tensors', 'rank_zero_warn']
