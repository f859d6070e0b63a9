# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, MPSAccelerator
from lightlib_lightning.plugins.registries import _AcceleratorRegistry
__all__ = ['Accelerator', 'MPSAccelerator', '_AcceleratorRegistry']
