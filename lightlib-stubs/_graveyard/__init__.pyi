# Written by scripts/typing_stubs.py --write.
from lightlib._graveyard import _torchmetrics, hpu, precision, tpu
__all__ = ['_torchmetrics', 'hpu', 'precision', 'tpu']
