# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.registries import _AcceleratorRegistry
from lightlib_lightning.types import _DEVICE
__all__ = ['Accelerator', 'FabricXLAAccelerator', 'XLAAccelerator', '_AcceleratorRegistry', '_DEVICE']
class FabricXLAAccelerator(Absent): ...
class XLAAccelerator(Absent): ...
