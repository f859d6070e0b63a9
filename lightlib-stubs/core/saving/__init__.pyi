# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import CUDAAccelerator, MPSAccelerator
from lightlib.core.values.hparams import AttributeDict
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.functions import is_dir as _is_dir
from lightlib_lightning.internals.saving import load_object as _load_from_checkpoint, load_state as _load_state
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.old_pickles import pl_legacy_patch
from lightlib_lightning.tools.parsing import CHECKPOINT_PAST_HPARAMS_KEYS, convert, load_hparams_from_tags_csv, load_hparams_from_yaml, parse_class_init_keys, pl_load, save_hparams_to_tags_csv, save_hparams_to_yaml, update_hparams
from lightlib_lightning.tools.small_functions import get_filesystem, is_overridden
from lightlib_lightning.types import _MAP_LOCATION_TYPE, _PATH
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['AttributeDict', 'CHECKPOINT_PAST_HPARAMS_KEYS', 'CUDAAccelerator', 'MPSAccelerator', 'XLAAccelerator', '_MAP_LOCATION_TYPE', '_OMEGACONF_AVAILABLE', '_PATH', '_is_dir', '_load_from_checkpoint', '_load_state', 'apply_to_collection', 'convert', 'get_filesystem', 'is_overridden', 'load_hparams_from_tags_csv', 'load_hparams_from_yaml', 'log', 'parse_class_init_keys', 'pl_legacy_patch', 'pl_load', 'rank_zero_warn', 'save_hparams_to_tags_csv', 'save_hparams_to_yaml', 'update_hparams']
class XLAAccelerator(Absent): ...
_OMEGACONF_AVAILABLE: bool
