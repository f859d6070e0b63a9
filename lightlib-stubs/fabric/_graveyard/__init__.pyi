# Written by scripts/typing_stubs.py --write.
from lightlib.fabric._graveyard import tpu
__all__ = ['tpu']
