# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import MPSAccelerator
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.functions import reasons_to_skip as _runif_reasons
from lightning_utilities.core.imports import compare_version
from torch.cuda import device_count as num_cuda_devices
__all__ = ['MPSAccelerator', 'XLAAccelerator', '_DEEPSPEED_AVAILABLE', '_TORCH_GREATER_EQUAL_2_4', '_runif_reasons', 'compare_version', 'num_cuda_devices']
class XLAAccelerator(Absent): ...
_DEEPSPEED_AVAILABLE: bool
_TORCH_GREATER_EQUAL_2_4: bool
