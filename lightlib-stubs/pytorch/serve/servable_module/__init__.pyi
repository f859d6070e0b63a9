# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.serving import ServableModule
__all__ = ['ServableModule']
