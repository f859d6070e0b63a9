# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import EarlyStopping
from lightlib.callbacks.early_stopping import EarlyStoppingReason
from lightlib.errors import MisconfigurationException
from lightlib_lightning.loggers import log
from lightning_utilities.core.rank_zero import rank_prefixed_message, rank_zero_warn
__all__ = ['Callback', 'EarlyStopping', 'EarlyStoppingReason', 'MisconfigurationException', 'log', 'rank_prefixed_message', 'rank_zero_warn']
