# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib.compat.internals.loops import DataSource as _DataLoaderSource, EvaluationLoop as _EvaluationLoop
from lightlib.compat.tools.closures import RestartStage
from lightlib.compat.tools.measures import has_len_all_ranks
from lightlib.compat.tools.small_functions import is_overridden, is_param_in_hook_signature
from lightlib.compat.types import _OUT_DICT
from lightlib.core.progress.states import RunningStage, TrainerFn
from lightlib.errors import SIGTERMException
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['CombinedLoader', 'RestartStage', 'RunningStage', 'SIGTERMException', 'TrainerFn', '_DataLoaderSource', '_EvaluationLoop', '_OUT_DICT', '_RICH_AVAILABLE', 'apply_to_collection', 'has_len_all_ranks', 'is_overridden', 'is_param_in_hook_signature']
_RICH_AVAILABLE: bool
