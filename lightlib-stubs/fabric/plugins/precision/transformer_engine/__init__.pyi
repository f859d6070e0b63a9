# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.layer_precision import TransformerEnginePrecision
from lightlib_lightning.plugins.precision import Precision
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Precision', 'RequirementCache', 'TransformerEnginePrecision', '_TRANSFORMER_ENGINE_AVAILABLE', 'apply_to_collection', 'log', 'rank_zero_info', 'rank_zero_warn']
_TRANSFORMER_ENGINE_AVAILABLE: bool
