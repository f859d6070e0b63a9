# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.registries import _register_classes
from lightlib_lightning.tools.small_functions import is_overridden
__all__ = ['_PYTHON_GREATER_EQUAL_3_10_0', '_register_classes', 'is_overridden']
_PYTHON_GREATER_EQUAL_3_10_0: bool
