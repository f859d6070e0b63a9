# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks.summary.model_summary import Summary as ModelSummary, summarize
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.measures import LEFTOVER_PARAMS_NAME, LayerSummary, NOT_APPLICABLE, PARAMETER_NUM_UNITS, UNKNOWN_SIZE, get_formatted_model_size, get_human_readable_count, parse_batch_shape
from lightlib_lightning.tools.values import warning_cache
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_warn
__all__ = ['LEFTOVER_PARAMS_NAME', 'LayerSummary', 'ModelSummary', 'NOT_APPLICABLE', 'PARAMETER_NUM_UNITS', 'UNKNOWN_SIZE', 'WarningCache', '_TORCH_GREATER_EQUAL_2_4', 'get_formatted_model_size', 'get_human_readable_count', 'log', 'parse_batch_shape', 'rank_zero_warn', 'summarize', 'warning_cache']
_TORCH_GREATER_EQUAL_2_4: bool
