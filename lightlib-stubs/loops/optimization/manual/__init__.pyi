# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.closures import ManualResult, OutputResult, do_nothing_closure
from lightlib_lightning.types import STEP_OUTPUT
__all__ = ['ManualResult', 'MisconfigurationException', 'OutputResult', 'STEP_OUTPUT', 'do_nothing_closure']
