# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.plugins.io import CheckpointIO, _WrappingCheckpointIO
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.registries import _StrategyRegistry
from lightlib.compat.plugins.strategies import SingleDeviceStrategy
from lightlib.compat.tools.small_functions import find_shared_parameters, set_shared_parameters
from lightlib.compat.types import _DEVICE
from lightlib.core.progress.states import TrainerFn
__all__ = ['CheckpointIO', 'Precision', 'SingleDeviceStrategy', 'SingleDeviceXLAStrategy', 'TrainerFn', 'XLACheckpointIO', 'XLAPrecision', '_DEVICE', '_StrategyRegistry', '_WrappingCheckpointIO', '_XLA_AVAILABLE', 'find_shared_parameters', 'set_shared_parameters']
class SingleDeviceXLAStrategy(Absent): ...
class XLACheckpointIO(Absent): ...
class XLAPrecision(Absent): ...
_XLA_AVAILABLE: bool
