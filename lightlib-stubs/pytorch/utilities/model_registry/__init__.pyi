# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.absent import Absent
from lightlib_lightning.types import _PATH
from lightning_utilities.core.imports import module_available
__all__ = ['_IS_WINDOWS', '_PATH', 'download_model_from_registry', 'find_model_local_ckpt_path', 'module_available']
_IS_WINDOWS: bool
class download_model_from_registry(Absent): ...
class find_model_local_ckpt_path(Absent): ...
