# Written by scripts/typing_stubs.py --write.
from lightlib.fabric.fabric import Fabric
from lightlib.fabric.wrapped import is_wrapped
__all__ = ['Fabric', 'is_wrapped']
