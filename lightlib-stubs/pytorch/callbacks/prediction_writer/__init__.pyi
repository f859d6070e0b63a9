# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks.prediction_writer import BasePredictionWriter, WriteInterval
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.small_functions import is_param_in_hook_signature
from lightning_utilities.core.enums import StrEnum as LightningEnum
__all__ = ['BasePredictionWriter', 'Callback', 'LightningEnum', 'MisconfigurationException', 'WriteInterval', 'is_param_in_hook_signature']
