# Written by scripts/typing_stubs.py --write.
__all__ = ['_TORCH_GREATER_EQUAL_2_3']
_TORCH_GREATER_EQUAL_2_3: bool
