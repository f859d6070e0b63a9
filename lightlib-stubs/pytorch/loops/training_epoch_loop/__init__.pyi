# Written by scripts/typing_stubs.py --write.
from lightlib.core.progress.states import RunningStage, TrainerFn
from lightlib.errors import MisconfigurationException, SIGTERMException
from lightlib.report import PossibleUserWarning
from lightlib_lightning.internals.functions import Stateful as _Stateful
from lightlib_lightning.internals.loops import EpochLoop as _TrainingEpochLoop
from lightlib_lightning.tools.closures import RestartStage
from lightlib_lightning.tools.small_functions import is_param_in_hook_signature
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_warn
__all__ = ['MisconfigurationException', 'PossibleUserWarning', 'RestartStage', 'RunningStage', 'SIGTERMException', 'TrainerFn', 'WarningCache', '_Stateful', '_TrainingEpochLoop', 'is_param_in_hook_signature', 'rank_zero_warn']
