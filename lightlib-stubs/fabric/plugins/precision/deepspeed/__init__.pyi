# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.precision import Precision
from lightlib.compat.plugins.strategy_precision import DeepSpeedPrecision
from lightlib.compat.tools.values import Steppable
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['DeepSpeedPrecision', 'Precision', 'Steppable', 'apply_to_collection']
