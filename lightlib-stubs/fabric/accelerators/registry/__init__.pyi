# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.plugins.registries import _AcceleratorRegistry, _register_classes, call_register_accelerators
__all__ = ['MisconfigurationException', '_AcceleratorRegistry', '_register_classes', 'call_register_accelerators']
