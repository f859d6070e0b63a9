# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.closures import AbstractClosure, Closure, ClosureResult, OutputResult
from lightlib_lightning.types import STEP_OUTPUT
from lightning_utilities.core.rank_zero import WarningCache
__all__ = ['AbstractClosure', 'Closure', 'ClosureResult', 'MisconfigurationException', 'OutputResult', 'STEP_OUTPUT', 'WarningCache']
