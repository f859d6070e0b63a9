# Written by scripts/typing_stubs.py --write.
from lightlib.report import PossibleUserWarning
from lightlib_lightning.tools.values import LightningDeprecationWarning, disable_possible_user_warnings
__all__ = ['LightningDeprecationWarning', 'PossibleUserWarning', 'disable_possible_user_warnings']
