# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.small_functions import is_param_in_hook_signature
__all__ = ['is_param_in_hook_signature']
