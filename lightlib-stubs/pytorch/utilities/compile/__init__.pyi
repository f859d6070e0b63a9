# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, SingleDeviceStrategy
from lightlib.compat.plugins.strategy import Strategy
from lightlib.compat.tools.small_functions import from_compiled, to_uncompiled
__all__ = ['DDPStrategy', 'DeepSpeedStrategy', 'FSDPStrategy', 'SingleDeviceStrategy', 'Strategy', 'from_compiled', 'to_uncompiled']
