# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import BatchSizeFinder, Checkpoint, LearningRateFinder, ModelCheckpoint, ModelSummary, ProgressBar, RichModelSummary, RichProgressBar, TQDMProgressBar, Timer
from lightlib.errors import MisconfigurationException
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.connectors import CallbackConnector as _CallbackConnector
from lightlib_lightning.tools.small_functions import is_overridden
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_info
__all__ = ['BatchSizeFinder', 'Callback', 'Checkpoint', 'LearningRateFinder', 'LitLogger', 'MisconfigurationException', 'ModelCheckpoint', 'ModelSummary', 'ProgressBar', 'RequirementCache', 'RichModelSummary', 'RichProgressBar', 'TQDMProgressBar', 'Timer', '_CallbackConnector', '_RICH_AVAILABLE', 'is_overridden', 'rank_zero_info']
class LitLogger(Absent): ...
_RICH_AVAILABLE: bool
