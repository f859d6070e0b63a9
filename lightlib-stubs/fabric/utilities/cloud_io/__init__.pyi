# Written by scripts/typing_stubs.py --write.
from lightlib.compat.internals.functions import is_dir as _is_dir
from lightlib.compat.internals.saving import load as _load
from lightlib.compat.loggers import log
from lightlib.compat.tools.small_functions import get_filesystem
from lightlib.compat.types import _MAP_LOCATION_TYPE, _PATH
from lightning_utilities.core.imports import module_available
__all__ = ['_MAP_LOCATION_TYPE', '_PATH', '_is_dir', '_load', 'get_filesystem', 'log', 'module_available']
