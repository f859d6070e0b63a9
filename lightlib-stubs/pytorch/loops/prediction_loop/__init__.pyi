# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib.callbacks.prediction_writer import BasePredictionWriter
from lightlib.core.progress.states import RunningStage, TrainerFn
from lightlib.errors import MisconfigurationException
from lightlib_lightning.internals.loops import DataSource as _DataLoaderSource, PredictionLoop as _PredictionLoop
from lightlib_lightning.tools.measures import has_len_all_ranks
from lightlib_lightning.tools.small_functions import is_param_in_hook_signature, move_data_to_device
from lightlib_lightning.types import _PREDICT_OUTPUT
from lightning_utilities.core.rank_zero import WarningCache
__all__ = ['BasePredictionWriter', 'CombinedLoader', 'MisconfigurationException', 'RunningStage', 'TrainerFn', 'WarningCache', '_DataLoaderSource', '_PREDICT_OUTPUT', '_PredictionLoop', 'has_len_all_ranks', 'is_param_in_hook_signature', 'move_data_to_device']
