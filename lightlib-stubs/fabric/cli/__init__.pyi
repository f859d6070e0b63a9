# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import CPUAccelerator, CUDAAccelerator, MPSAccelerator
from lightlib_lightning.internals.devices import parse_gpu_ids as _parse_gpu_ids
from lightlib_lightning.plugins.registries import STRATEGY_REGISTRY
from lightlib_lightning.tools.commands import run_fabric as main
from lightning_utilities.core.imports import RequirementCache
__all__ = ['CPUAccelerator', 'CUDAAccelerator', 'MPSAccelerator', 'RequirementCache', 'STRATEGY_REGISTRY', '_CLICK_AVAILABLE', '_LIGHTNING_SDK_AVAILABLE', '_parse_gpu_ids', 'main']
_CLICK_AVAILABLE: bool
_LIGHTNING_SDK_AVAILABLE: bool
