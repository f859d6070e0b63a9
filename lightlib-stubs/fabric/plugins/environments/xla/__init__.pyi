# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.environments import ClusterEnvironment
from lightlib.compat.loggers import log
__all__ = ['ClusterEnvironment', 'XLAAccelerator', 'XLAEnvironment', '_XLA_AVAILABLE', '_XLA_GREATER_EQUAL_2_1', 'log']
class XLAAccelerator(Absent): ...
class XLAEnvironment(Absent): ...
_XLA_AVAILABLE: bool
_XLA_GREATER_EQUAL_2_1: bool
