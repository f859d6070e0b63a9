# Written by scripts/typing_stubs.py --write.
from lightlib import Callback, LightningModule
from lightlib.callbacks.pruning.model_pruning import ModelPruning
from lightlib.errors import MisconfigurationException
from lightlib_lightning.loggers import log
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_debug, rank_zero_only
__all__ = ['Callback', 'LightningModule', 'MisconfigurationException', 'ModelPruning', 'apply_to_collection', 'log', 'rank_zero_debug', 'rank_zero_only']
