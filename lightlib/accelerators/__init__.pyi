# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.cpu import CPUAccelerator
from lightlib.accelerators.cuda import CUDAAccelerator, find_usable_cuda_devices
from lightlib.accelerators.mps import MPSAccelerator
from lightlib.accelerators.resolve import choose
__all__ = ['Accelerator', 'CPUAccelerator', 'CUDAAccelerator', 'MPSAccelerator', 'choose', 'find_usable_cuda_devices']
