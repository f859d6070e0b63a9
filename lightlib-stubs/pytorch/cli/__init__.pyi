# Written by scripts/typing_stubs.py --write.
from lightlib import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightlib.cli import ArgsType, LightningArgumentParser, LightningCLI, ReduceLROnPlateau, SaveConfigCallback, instantiate_module
from lightlib.config.optimizers import LRSchedulerCallable, OptimizerCallable, instantiate_class
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.small_functions import get_filesystem, is_overridden
from lightlib_lightning.types import LRScheduler, LRSchedulerType, LRSchedulerTypeTuple, LRSchedulerTypeUnion, ModuleType
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['ArgsType', 'Callback', 'LRScheduler', 'LRSchedulerCallable', 'LRSchedulerType', 'LRSchedulerTypeTuple', 'LRSchedulerTypeUnion', 'LightningArgumentParser', 'LightningCLI', 'LightningDataModule', 'LightningModule', 'MisconfigurationException', 'ModuleType', 'OptimizerCallable', 'ReduceLROnPlateau', 'RequirementCache', 'SaveConfigCallback', 'Trainer', '_JSONARGPARSE_SIGNATURES_AVAILABLE', 'get_filesystem', 'instantiate_class', 'instantiate_module', 'is_overridden', 'rank_zero_warn', 'seed_everything']
_JSONARGPARSE_SIGNATURES_AVAILABLE: bool
