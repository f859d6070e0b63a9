# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib.core.progress.states import RunningStage, TrainerFn
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from lightlib.samplers.distributed import DistributedSamplerWrapper, UnrepeatedDistributedSamplerWrapper
from lightlib_lightning.internals.connectors import DataConnector as _DataConnector
from lightlib_lightning.internals.loops import DataSource as _DataLoaderSource
from lightlib_lightning.tools.small_functions import has_iterable_dataset, is_overridden, suggested_max_num_workers
from lightlib_lightning.tools.values import warning_cache
from lightlib_lightning.types import EVAL_DATALOADERS, TRAIN_DATALOADERS
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_warn
__all__ = ['CombinedLoader', 'DistributedSamplerWrapper', 'EVAL_DATALOADERS', 'MisconfigurationException', 'PossibleUserWarning', 'RunningStage', 'TRAIN_DATALOADERS', 'TrainerFn', 'UnrepeatedDistributedSamplerWrapper', 'WarningCache', '_DataConnector', '_DataLoaderSource', 'has_iterable_dataset', 'is_overridden', 'rank_zero_warn', 'suggested_max_num_workers', 'warning_cache']
