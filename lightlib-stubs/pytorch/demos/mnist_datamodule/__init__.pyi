# Written by scripts/typing_stubs.py --write.
from lightlib import LightningDataModule
from lightlib_lightning.tools.mnist_demo import MNIST, MNISTDataModule
__all__ = ['LightningDataModule', 'MNIST', 'MNISTDataModule', '_IS_WINDOWS', '_TORCHVISION_AVAILABLE']
_IS_WINDOWS: bool
_TORCHVISION_AVAILABLE: bool
