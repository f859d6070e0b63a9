# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.small_functions import sized_len
__all__ = ['CombinedLoader', 'MisconfigurationException', 'sized_len']
