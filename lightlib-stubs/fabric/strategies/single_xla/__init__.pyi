# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator
from lightlib.compat.absent import Absent
from lightlib.compat.plugins.io import CheckpointIO
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.registries import _StrategyRegistry
from lightlib.compat.plugins.strategies import SingleDeviceStrategy
from lightlib.compat.types import _DEVICE
__all__ = ['Accelerator', 'CheckpointIO', 'Precision', 'SingleDeviceStrategy', 'SingleDeviceXLAStrategy', 'XLACheckpointIO', 'XLAPrecision', '_DEVICE', '_StrategyRegistry', '_XLA_AVAILABLE']
class SingleDeviceXLAStrategy(Absent): ...
class XLACheckpointIO(Absent): ...
class XLAPrecision(Absent): ...
_XLA_AVAILABLE: bool
