# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import Timer
from lightlib.core.progress.states import RunningStage
from lightlib.errors import MisconfigurationException
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.values import Interval
from lightning_utilities.core.enums import StrEnum as LightningEnum
from lightning_utilities.core.rank_zero import rank_zero_info
__all__ = ['Callback', 'Interval', 'LightningEnum', 'MisconfigurationException', 'RunningStage', 'Timer', 'log', 'rank_zero_info']
