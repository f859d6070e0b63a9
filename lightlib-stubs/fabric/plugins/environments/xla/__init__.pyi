# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.absent import Absent
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.loggers import log
__all__ = ['ClusterEnvironment', 'XLAAccelerator', 'XLAEnvironment', '_XLA_AVAILABLE', '_XLA_GREATER_EQUAL_2_1', 'log']
class XLAAccelerator(Absent): ...
class XLAEnvironment(Absent): ...
_XLA_AVAILABLE: bool
_XLA_GREATER_EQUAL_2_1: bool
