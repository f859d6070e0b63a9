# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import garbage_collection_cuda, is_oom_error, lightning_getattr, lightning_setattr
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['garbage_collection_cuda', 'is_oom_error', 'lightning_getattr', 'lightning_setattr', 'log', 'rank_zero_info', 'rank_zero_warn']
