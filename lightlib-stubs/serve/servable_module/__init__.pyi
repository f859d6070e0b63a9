# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.serving import ServableModule
__all__ = ['ServableModule']
