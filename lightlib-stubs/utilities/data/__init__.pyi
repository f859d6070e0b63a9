# Written by scripts/typing_stubs.py --write.
from lightlib.core.progress.states import RunningStage
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from lightlib_lightning.tools.measures import has_len_all_ranks
from lightlib_lightning.tools.small_functions import extract_batch_size, has_iterable_dataset, sized_len
from lightlib_lightning.tools.values import warning_cache
from lightlib_lightning.types import BType
from lightning_utilities.core.apply_func import is_dataclass_instance
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_warn
__all__ = ['BType', 'MisconfigurationException', 'PossibleUserWarning', 'RunningStage', 'WarningCache', 'extract_batch_size', 'has_iterable_dataset', 'has_len_all_ranks', 'is_dataclass_instance', 'rank_zero_warn', 'sized_len', 'warning_cache']
