# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.strategy_precision import DeepSpeedPrecision, DeepSpeedPrecision as DeepSpeedPrecisionPlugin
from lightlib_lightning.tools.small_functions import is_overridden
from lightlib_lightning.tools.values import GradClipAlgorithmType, Steppable, warning_cache
from lightlib_lightning.types import _PRECISION_INPUT
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import WarningCache
__all__ = ['DeepSpeedPrecision', 'DeepSpeedPrecisionPlugin', 'GradClipAlgorithmType', 'MisconfigurationException', 'Precision', 'Steppable', 'WarningCache', '_PRECISION_INPUT', 'apply_to_collection', 'is_overridden', 'warning_cache']
