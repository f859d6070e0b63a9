# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.functions import METADATA_FILENAME as _METADATA_FILENAME
__all__ = ['_METADATA_FILENAME', '_TORCH_GREATER_EQUAL_2_3']
_TORCH_GREATER_EQUAL_2_3: bool
