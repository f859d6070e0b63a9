# Written by scripts/typing_stubs.py --write.
from lightlib.core.progress.states import TrainerFn
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.io import CheckpointIO, _WrappingCheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import SingleDeviceStrategy
from lightlib_lightning.tools.small_functions import find_shared_parameters, set_shared_parameters
from lightlib_lightning.types import _DEVICE
__all__ = ['CheckpointIO', 'Precision', 'SingleDeviceStrategy', 'SingleDeviceXLAStrategy', 'TrainerFn', 'XLACheckpointIO', 'XLAPrecision', '_DEVICE', '_StrategyRegistry', '_WrappingCheckpointIO', '_XLA_AVAILABLE', 'find_shared_parameters', 'set_shared_parameters']
class SingleDeviceXLAStrategy(Absent): ...
class XLACheckpointIO(Absent): ...
class XLAPrecision(Absent): ...
_XLA_AVAILABLE: bool
