# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.absent import Absent
__all__ = ['XLACheckpointIO']
class XLACheckpointIO(Absent): ...
