# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import accelerator, cpu, cuda, hpu, mps, tpu, xla
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.cpu import CPUAccelerator
from lightlib.accelerators.cuda import CUDAAccelerator, find_usable_cuda_devices
from lightlib.accelerators.mps import MPSAccelerator
from lightlib.accelerators.resolve import choose
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.registries import ACCELERATOR_REGISTRY as AcceleratorRegistry, _AcceleratorRegistry, _register_classes
__all__ = ['Accelerator', 'AcceleratorRegistry', 'CPUAccelerator', 'CUDAAccelerator', 'HPUAccelerator', 'MPSAccelerator', 'TPUAccelerator', 'XLAAccelerator', '_AcceleratorRegistry', '_register_classes', 'accelerator', 'choose', 'cpu', 'cuda', 'find_usable_cuda_devices', 'hpu', 'mps', 'tpu', 'xla']
class HPUAccelerator(Absent): ...
class TPUAccelerator(Absent): ...
class XLAAccelerator(Absent): ...
