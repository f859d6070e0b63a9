# Written by scripts/typing_stubs.py --write.
from lightlib import LightningDataModule, LightningModule
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib_lightning.absent import Absent
from lightlib_lightning.demos import BoringDataModule, BoringModel, DemoModel, ManualOptimBoringModel, RandomDataset, RandomDictDataset, RandomIterableDataset, RandomIterableDatasetWithLen
from lightlib_lightning.tools.mnist_demo import Net
from lightlib_lightning.types import LRScheduler, STEP_OUTPUT
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['BoringDataModule', 'BoringDataModuleNoLen', 'BoringModel', 'DemoModel', 'IterableBoringDataModule', 'LRScheduler', 'LightningDataModule', 'LightningModule', 'LightningOptimizer', 'ManualOptimBoringModel', 'Net', 'RandomDataset', 'RandomDictDataset', 'RandomIterableDataset', 'RandomIterableDatasetWithLen', 'STEP_OUTPUT', 'apply_to_collection']
class BoringDataModuleNoLen(Absent): ...
class IterableBoringDataModule(Absent): ...
