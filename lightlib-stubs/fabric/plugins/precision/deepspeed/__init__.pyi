# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.strategy_precision import DeepSpeedPrecision
from lightlib_lightning.tools.values import Steppable
from lightlib_lightning.types import _PRECISION_INPUT
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['DeepSpeedPrecision', 'Precision', 'Steppable', '_PRECISION_INPUT', 'apply_to_collection']
