# Written by scripts/typing_stubs.py --write.
from lightlib.fabric import is_wrapped
from lightlib.fabric.loader import FabricLoader as _FabricDataLoader
from lightlib.fabric.wrapped import FabricModule as _FabricModule, FabricOptimizer as _FabricOptimizer
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.tools.small_functions import is_overridden, move_data_to_device
from lightlib_lightning.tools.values import Optimizable
from lightlib_lightning.types import T_destination
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['Optimizable', 'Precision', 'Strategy', 'T_destination', '_FabricDataLoader', '_FabricModule', '_FabricOptimizer', 'apply_to_collection', 'is_overridden', 'is_wrapped', 'move_data_to_device']
