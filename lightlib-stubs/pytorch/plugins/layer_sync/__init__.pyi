# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.layer_sync import LayerSync, TorchSyncBatchNorm
__all__ = ['LayerSync', 'TorchSyncBatchNorm']
