# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import SingleDeviceStrategy
from lightlib_lightning.types import _DEVICE
__all__ = ['Accelerator', 'CheckpointIO', 'Precision', 'SingleDeviceStrategy', 'SingleDeviceXLAStrategy', 'XLACheckpointIO', 'XLAPrecision', '_DEVICE', '_StrategyRegistry', '_XLA_AVAILABLE']
class SingleDeviceXLAStrategy(Absent): ...
class XLACheckpointIO(Absent): ...
class XLAPrecision(Absent): ...
_XLA_AVAILABLE: bool
