# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.values import GradClipAlgorithmType
from lightning_utilities.core.enums import StrEnum as LightningEnum
__all__ = ['GradClipAlgorithmType', 'LightningEnum']
