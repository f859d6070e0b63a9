# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import BackboneFinetuning, BaseFinetuning
from lightlib.callbacks.finetuning.backbone import multiplicative
from lightlib.errors import MisconfigurationException
from lightlib_lightning.loggers import log
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['BackboneFinetuning', 'BaseFinetuning', 'Callback', 'MisconfigurationException', '_TORCHVISION_AVAILABLE', 'log', 'multiplicative', 'rank_zero_warn']
_TORCHVISION_AVAILABLE: bool
