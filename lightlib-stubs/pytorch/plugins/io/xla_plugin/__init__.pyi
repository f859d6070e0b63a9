# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
__all__ = ['XLACheckpointIO']
class XLACheckpointIO(Absent): ...
