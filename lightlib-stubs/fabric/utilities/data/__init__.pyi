# Written by scripts/typing_stubs.py --write.
from lightlib.core.values.hparams import AttributeDict
from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools.seeds import pl_worker_init_function
from lightlib_lightning.tools.small_functions import get_all_subclasses, has_iterable_dataset, has_len, sized_len, suggested_max_num_workers
from lightning_utilities.core.enums import StrEnum as LightningEnum
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['AttributeDict', 'LightningEnum', 'MisconfigurationException', 'get_all_subclasses', 'has_iterable_dataset', 'has_len', 'pl_worker_init_function', 'rank_zero_warn', 'sized_len', 'suggested_max_num_workers']
