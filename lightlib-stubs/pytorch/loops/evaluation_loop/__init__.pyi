# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib.core.progress.states import RunningStage, TrainerFn
from lightlib.errors import SIGTERMException
from lightlib_lightning.internals.loops import DataSource as _DataLoaderSource, EvaluationLoop as _EvaluationLoop
from lightlib_lightning.tools.closures import RestartStage
from lightlib_lightning.tools.measures import has_len_all_ranks
from lightlib_lightning.tools.small_functions import is_overridden, is_param_in_hook_signature
from lightlib_lightning.types import _OUT_DICT
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['CombinedLoader', 'RestartStage', 'RunningStage', 'SIGTERMException', 'TrainerFn', '_DataLoaderSource', '_EvaluationLoop', '_OUT_DICT', '_RICH_AVAILABLE', 'apply_to_collection', 'has_len_all_ranks', 'is_overridden', 'is_param_in_hook_signature']
_RICH_AVAILABLE: bool
