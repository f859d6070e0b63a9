# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.small_functions import move_data_to_device
from lightlib.compat.tools.values import CheckpointHooks
from lightlib.compat.types import EVAL_DATALOADERS, STEP_OUTPUT, TRAIN_DATALOADERS
from lightlib.core.module.hook_defaults import DataHooks, ModelHooks
from lightlib.errors import MisconfigurationException
__all__ = ['CheckpointHooks', 'DataHooks', 'EVAL_DATALOADERS', 'MisconfigurationException', 'ModelHooks', 'STEP_OUTPUT', 'TRAIN_DATALOADERS', 'move_data_to_device']
