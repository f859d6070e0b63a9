# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.small_functions import find_shared_parameters, set_shared_parameters
__all__ = ['find_shared_parameters', 'set_shared_parameters']
