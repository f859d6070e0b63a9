# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.io import CheckpointIO
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.registries import _StrategyRegistry
from lightlib.compat.plugins.strategies import SingleDeviceStrategy
from lightlib.compat.plugins.strategy import Strategy
from lightlib.compat.types import TBroadcast, _DEVICE
__all__ = ['CheckpointIO', 'Precision', 'SingleDeviceStrategy', 'Strategy', 'TBroadcast', '_DEVICE', '_StrategyRegistry']
