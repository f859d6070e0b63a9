# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.functions import defaults_from_environment as _defaults_from_env_vars
__all__ = ['_defaults_from_env_vars']
