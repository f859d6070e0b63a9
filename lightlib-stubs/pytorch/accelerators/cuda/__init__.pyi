# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CUDAAccelerator
from lightlib.errors import MisconfigurationException
from lightlib_lightning.internals.devices import parse_gpu_ids as _parse_gpu_ids
from lightlib_lightning.plugins.registries import _AcceleratorRegistry
from lightlib_lightning.tools.measures import get_nvidia_gpu_stats
from lightlib_lightning.types import _DEVICE
from torch.cuda import device_count as num_cuda_devices
__all__ = ['Accelerator', 'CUDAAccelerator', 'MisconfigurationException', '_AcceleratorRegistry', '_DEVICE', '_parse_gpu_ids', 'get_nvidia_gpu_stats', 'num_cuda_devices']
