# Written by scripts/typing_stubs.py --write.
from lightlib.core.progress.states import TrainerFn
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from lightlib_lightning.tools.small_functions import is_overridden, is_param_in_hook_signature
from lightning_utilities.core.rank_zero import rank_zero_deprecation, rank_zero_warn
__all__ = ['MisconfigurationException', 'PossibleUserWarning', 'TrainerFn', 'is_overridden', 'is_param_in_hook_signature', 'rank_zero_deprecation', 'rank_zero_warn']
