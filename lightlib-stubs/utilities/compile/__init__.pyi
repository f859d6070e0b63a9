# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, SingleDeviceStrategy
from lightlib_lightning.tools.small_functions import from_compiled, to_uncompiled
__all__ = ['DDPStrategy', 'DeepSpeedStrategy', 'FSDPStrategy', 'SingleDeviceStrategy', 'Strategy', 'from_compiled', 'to_uncompiled']
