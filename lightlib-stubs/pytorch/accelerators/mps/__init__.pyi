# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, MPSAccelerator
from lightlib.compat.internals.devices import parse_gpu_ids as _parse_gpu_ids
from lightlib.compat.plugins.registries import _AcceleratorRegistry
from lightlib.compat.tools.measures import get_device_stats
from lightlib.compat.types import _DEVICE
from lightlib.errors import MisconfigurationException
__all__ = ['Accelerator', 'MPSAccelerator', 'MisconfigurationException', '_AcceleratorRegistry', '_DEVICE', '_PSUTIL_AVAILABLE', '_parse_gpu_ids', 'get_device_stats']
_PSUTIL_AVAILABLE: bool
