# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib.compat.absent import Absent
from lightlib.compat.plugins.registries import _AcceleratorRegistry
from lightlib.compat.types import _DEVICE
__all__ = ['Accelerator', 'FabricXLAAccelerator', 'XLAAccelerator', '_AcceleratorRegistry', '_DEVICE']
class FabricXLAAccelerator(Absent): ...
class XLAAccelerator(Absent): ...
