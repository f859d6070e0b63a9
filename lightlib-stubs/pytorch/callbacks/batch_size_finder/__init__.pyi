# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import BatchSizeFinder
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.small_functions import lightning_hasattr
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['BatchSizeFinder', 'Callback', 'MisconfigurationException', 'lightning_hasattr', 'rank_zero_warn']
