# Written by scripts/typing_stubs.py --write.
from lightlib import LightningDataModule, LightningModule
from lightlib.core import datamodule, hooks, mixins, module, optimizer, saving
__all__ = ['LightningDataModule', 'LightningModule', 'datamodule', 'hooks', 'mixins', 'module', 'optimizer', 'saving']
