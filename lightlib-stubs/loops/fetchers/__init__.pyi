# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib.compat.tools.small_functions import sized_len
from lightlib.errors import MisconfigurationException
__all__ = ['CombinedLoader', 'MisconfigurationException', 'sized_len']
