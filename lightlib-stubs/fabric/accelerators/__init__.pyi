# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CPUAccelerator, CUDAAccelerator, MPSAccelerator, find_usable_cuda_devices
from lightlib.fabric.accelerators import accelerator, cpu, cuda, mps, registry, tpu, xla
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.registries import ACCELERATOR_REGISTRY, _AcceleratorRegistry, _register_classes
__all__ = ['ACCELERATOR_REGISTRY', 'Accelerator', 'CPUAccelerator', 'CUDAAccelerator', 'MPSAccelerator', 'TPUAccelerator', 'XLAAccelerator', '_AcceleratorRegistry', '_register_classes', 'accelerator', 'cpu', 'cuda', 'find_usable_cuda_devices', 'mps', 'registry', 'tpu', 'xla']
class TPUAccelerator(Absent): ...
class XLAAccelerator(Absent): ...
