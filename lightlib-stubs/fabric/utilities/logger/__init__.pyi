# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.logged import add_prefix as _add_prefix, convert_params as _convert_params, flatten_dict as _flatten_dict, sanitize_callable_params as _sanitize_callable_params, sanitize_params as _sanitize_params
__all__ = ['_NUMPY_AVAILABLE', '_add_prefix', '_convert_params', '_flatten_dict', '_sanitize_callable_params', '_sanitize_params']
_NUMPY_AVAILABLE: bool
