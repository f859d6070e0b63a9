# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.closures import AbstractClosure, Closure, ClosureResult, OutputResult
from lightlib.compat.types import STEP_OUTPUT
from lightlib.errors import MisconfigurationException
from lightning_utilities.core.rank_zero import WarningCache
__all__ = ['AbstractClosure', 'Closure', 'ClosureResult', 'MisconfigurationException', 'OutputResult', 'STEP_OUTPUT', 'WarningCache']
