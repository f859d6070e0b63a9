# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CPUAccelerator
from lightlib.compat.plugins.registries import _AcceleratorRegistry
from lightlib.compat.tools.measures import get_cpu_stats
from lightlib.compat.types import _DEVICE
from lightlib.errors import MisconfigurationException
from lightning_utilities.core.imports import RequirementCache
__all__ = ['Accelerator', 'CPUAccelerator', 'MisconfigurationException', 'RequirementCache', '_AcceleratorRegistry', '_DEVICE', '_PSUTIL_AVAILABLE', 'get_cpu_stats']
_PSUTIL_AVAILABLE: bool
