# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CPUAccelerator
from lightlib.errors import MisconfigurationException
from lightlib_lightning.plugins.registries import _AcceleratorRegistry
from lightlib_lightning.tools.measures import get_cpu_stats
from lightlib_lightning.types import _DEVICE
from lightning_utilities.core.imports import RequirementCache
__all__ = ['Accelerator', 'CPUAccelerator', 'MisconfigurationException', 'RequirementCache', '_AcceleratorRegistry', '_DEVICE', '_PSUTIL_AVAILABLE', 'get_cpu_stats']
_PSUTIL_AVAILABLE: bool
