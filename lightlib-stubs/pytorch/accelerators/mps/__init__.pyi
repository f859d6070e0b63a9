# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, MPSAccelerator
from lightlib.errors import MisconfigurationException
from lightlib_lightning.internals.devices import parse_gpu_ids as _parse_gpu_ids
from lightlib_lightning.plugins.registries import _AcceleratorRegistry
from lightlib_lightning.tools.measures import get_device_stats
from lightlib_lightning.types import _DEVICE
__all__ = ['Accelerator', 'MPSAccelerator', 'MisconfigurationException', '_AcceleratorRegistry', '_DEVICE', '_PSUTIL_AVAILABLE', '_parse_gpu_ids', 'get_device_stats']
_PSUTIL_AVAILABLE: bool
