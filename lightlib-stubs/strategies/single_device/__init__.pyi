# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.registries import _StrategyRegistry
from lightlib_lightning.plugins.strategies import SingleDeviceStrategy
from lightlib_lightning.types import TBroadcast, _DEVICE
__all__ = ['CheckpointIO', 'Precision', 'SingleDeviceStrategy', 'Strategy', 'TBroadcast', '_DEVICE', '_StrategyRegistry']
