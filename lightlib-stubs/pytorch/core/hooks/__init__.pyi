# Written by scripts/typing_stubs.py --write.
from lightlib.core.module.hook_defaults import DataHooks, ModelHooks
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.small_functions import move_data_to_device
from lightlib_lightning.tools.values import CheckpointHooks
from lightlib_lightning.types import EVAL_DATALOADERS, STEP_OUTPUT, TRAIN_DATALOADERS
__all__ = ['CheckpointHooks', 'DataHooks', 'EVAL_DATALOADERS', 'MisconfigurationException', 'ModelHooks', 'STEP_OUTPUT', 'TRAIN_DATALOADERS', 'move_data_to_device']
