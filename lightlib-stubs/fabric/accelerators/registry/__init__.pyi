# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.registries import _AcceleratorRegistry, _register_classes, call_register_accelerators
from lightlib.errors import MisconfigurationException
__all__ = ['MisconfigurationException', '_AcceleratorRegistry', '_register_classes', 'call_register_accelerators']
