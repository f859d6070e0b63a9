# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.functions import rank_from_environment as _get_rank
from lightlib_lightning.tools.values import LightningDeprecationWarning
from lightning_utilities.core.rank_zero import WarningCache, rank_prefixed_message, rank_zero_debug, rank_zero_deprecation, rank_zero_info, rank_zero_only, rank_zero_warn
__all__ = ['LightningDeprecationWarning', 'WarningCache', '_get_rank', 'rank_prefixed_message', 'rank_zero_debug', 'rank_zero_deprecation', 'rank_zero_info', 'rank_zero_only', 'rank_zero_warn']
