# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CUDAAccelerator, find_usable_cuda_devices
from lightlib_lightning.plugins.registries import _AcceleratorRegistry
from lightning_utilities.core.rank_zero import rank_zero_info
from torch.cuda import is_available as is_cuda_available, device_count as num_cuda_devices
__all__ = ['Accelerator', 'CUDAAccelerator', '_AcceleratorRegistry', 'find_usable_cuda_devices', 'is_cuda_available', 'num_cuda_devices', 'rank_zero_info']
