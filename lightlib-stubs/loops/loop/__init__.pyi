# Written by scripts/typing_stubs.py --write.
__all__ = []
