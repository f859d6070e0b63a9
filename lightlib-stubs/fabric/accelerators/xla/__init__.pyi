# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.devices import check_data_type as _check_data_type
from lightlib_lightning.plugins.registries import _AcceleratorRegistry
from lightning_utilities.core.imports import RequirementCache
__all__ = ['Accelerator', 'RequirementCache', 'XLAAccelerator', '_AcceleratorRegistry', '_XLA_AVAILABLE', '_XLA_GREATER_EQUAL_2_1', '_XLA_GREATER_EQUAL_2_5', '_check_data_type']
class XLAAccelerator(Absent): ...
_XLA_AVAILABLE: bool
_XLA_GREATER_EQUAL_2_1: bool
_XLA_GREATER_EQUAL_2_5: bool
