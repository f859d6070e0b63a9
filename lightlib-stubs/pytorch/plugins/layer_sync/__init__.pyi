# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.layer_sync import LayerSync, TorchSyncBatchNorm
__all__ = ['LayerSync', 'TorchSyncBatchNorm']
