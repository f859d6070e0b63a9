# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.functions import is_dir as _is_dir, is_local as _is_local_file_protocol
from lightlib_lightning.internals.saving import load as _load
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import get_filesystem
from lightlib_lightning.types import _MAP_LOCATION_TYPE, _PATH
from lightning_utilities.core.imports import module_available
__all__ = ['_MAP_LOCATION_TYPE', '_PATH', '_is_dir', '_is_local_file_protocol', '_load', 'get_filesystem', 'log', 'module_available']
