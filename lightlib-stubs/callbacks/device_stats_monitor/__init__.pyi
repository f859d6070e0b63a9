# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import DeviceStatsMonitor
from lightlib.errors import MisconfigurationException
from lightlib_lightning.types import STEP_OUTPUT
__all__ = ['Callback', 'DeviceStatsMonitor', 'MisconfigurationException', 'STEP_OUTPUT', '_PSUTIL_AVAILABLE']
_PSUTIL_AVAILABLE: bool
