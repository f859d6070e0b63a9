# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch._graveyard import _torchmetrics, hpu, precision, tpu
__all__ = ['_torchmetrics', 'hpu', 'precision', 'tpu']
