# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib_lightning.types import _DEVICE
__all__ = ['Accelerator', '_DEVICE']
