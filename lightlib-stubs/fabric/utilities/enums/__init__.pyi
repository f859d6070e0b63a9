# Written by scripts/typing_stubs.py --write.
from lightning_utilities.core.enums import StrEnum as LightningEnum
__all__ = ['LightningEnum']
