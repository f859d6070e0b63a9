# Written by scripts/typing_stubs.py --write.
from lightlib import LightningDataModule
from lightlib.core.module.hook_defaults import DataHooks
from lightlib.core.values.hparams import HyperparametersMixin
from lightlib_lightning.internals.saving import load_object as _load_from_checkpoint
from lightlib_lightning.types import EVAL_DATALOADERS, TRAIN_DATALOADERS, _MAP_LOCATION_TYPE, _PATH
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['DataHooks', 'EVAL_DATALOADERS', 'HyperparametersMixin', 'LightningDataModule', 'TRAIN_DATALOADERS', '_MAP_LOCATION_TYPE', '_PATH', '_load_from_checkpoint', 'apply_to_collection']
