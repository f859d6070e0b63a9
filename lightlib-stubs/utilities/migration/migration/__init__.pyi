# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.report import PossibleUserWarning
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['EarlyStopping', 'ModelCheckpoint', 'PossibleUserWarning', 'rank_zero_warn']
