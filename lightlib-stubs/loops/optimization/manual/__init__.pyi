# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.closures import ManualResult, OutputResult, do_nothing_closure
from lightlib.compat.types import STEP_OUTPUT
from lightlib.errors import MisconfigurationException
__all__ = ['ManualResult', 'MisconfigurationException', 'OutputResult', 'STEP_OUTPUT', 'do_nothing_closure']
