# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import Checkpoint
from lightlib_lightning.internals.logged import scan_checkpoints as _scan_checkpoints, version as _version
__all__ = ['Checkpoint', '_scan_checkpoints', '_version']
