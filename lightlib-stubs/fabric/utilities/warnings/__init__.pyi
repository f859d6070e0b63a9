# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.values import LightningDeprecationWarning, disable_possible_user_warnings
from lightlib.report import PossibleUserWarning
__all__ = ['LightningDeprecationWarning', 'PossibleUserWarning', 'disable_possible_user_warnings']
