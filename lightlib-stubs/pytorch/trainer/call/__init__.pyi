# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import Checkpoint, EarlyStopping
from lightlib.core.progress.states import TrainerStatus
from lightlib.loggers import WandbLogger
from lightlib_lightning.internals.functions import SubprocessScriptLauncher as _SubprocessScriptLauncher
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import is_overridden
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Checkpoint', 'EarlyStopping', 'TrainerStatus', 'WandbLogger', '_SubprocessScriptLauncher', 'is_overridden', 'log', 'rank_zero_info', 'rank_zero_warn']
