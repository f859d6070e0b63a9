# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.small_functions import grad_norm
__all__ = ['grad_norm']
