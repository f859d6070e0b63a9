# Written by scripts/typing_stubs.py --write.
from lightlib.core.values.hparams import AttributeDict
from lightlib_lightning.tools.parsing import collect_init_args, parse_class_init_keys, save_hyperparameters
from lightlib_lightning.tools.small_functions import clean_namespace, get_init_args, is_picklable, lightning_getattr, lightning_hasattr, lightning_setattr
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['AttributeDict', 'clean_namespace', 'collect_init_args', 'get_init_args', 'is_picklable', 'lightning_getattr', 'lightning_hasattr', 'lightning_setattr', 'parse_class_init_keys', 'rank_zero_warn', 'save_hyperparameters']
