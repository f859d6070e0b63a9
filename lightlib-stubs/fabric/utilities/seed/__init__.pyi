# Written by scripts/typing_stubs.py --write.
from lightlib import seed_everything
from lightlib_lightning.internals.functions import rank_from_environment as _get_rank
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.seeds import max_seed_value, min_seed_value, pl_worker_init_function, reset_seed
from lightning_utilities.core.rank_zero import rank_prefixed_message, rank_zero_only, rank_zero_warn
__all__ = ['_NUMPY_AVAILABLE', '_get_rank', 'log', 'max_seed_value', 'min_seed_value', 'pl_worker_init_function', 'rank_prefixed_message', 'rank_zero_only', 'rank_zero_warn', 'reset_seed', 'seed_everything']
_NUMPY_AVAILABLE: bool
