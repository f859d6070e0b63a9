# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.functions import METADATA_FILENAME as _METADATA_FILENAME, NotYetLoadedTensor as _NotYetLoadedTensor, Stateful as _Stateful, lazy_load as _lazy_load, move_state as _move_state_into
from lightlib_lightning.types import _PATH
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['_METADATA_FILENAME', '_NotYetLoadedTensor', '_PATH', '_Stateful', '_TORCH_GREATER_EQUAL_2_3', '_lazy_load', '_move_state_into', 'apply_to_collection']
_TORCH_GREATER_EQUAL_2_3: bool
