# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib.core.progress.states import RunningStage, TrainerFn
from lightlib.errors import MisconfigurationException, SIGTERMException
from lightlib.report import PossibleUserWarning
from lightlib_lightning.internals.loops import DataSource as _DataLoaderSource, FitLoop as _FitLoop, EpochLoop as _TrainingEpochLoop
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.closures import RestartStage
from lightlib_lightning.tools.measures import has_len_all_ranks
from lightlib_lightning.tools.small_functions import is_overridden, sized_len
from lightning_utilities.core.rank_zero import rank_zero_debug, rank_zero_info, rank_zero_warn
__all__ = ['CombinedLoader', 'MisconfigurationException', 'PossibleUserWarning', 'RestartStage', 'RunningStage', 'SIGTERMException', 'TrainerFn', '_DataLoaderSource', '_FitLoop', '_TrainingEpochLoop', 'has_len_all_ranks', 'is_overridden', 'log', 'rank_zero_debug', 'rank_zero_info', 'rank_zero_warn', 'sized_len']
