# Written by scripts/typing_stubs.py --write.
from lightning_utilities.core.imports import compare_version
__all__ = ['_TORCHMETRICS_GREATER_EQUAL_0_8_0', 'compare_version']
_TORCHMETRICS_GREATER_EQUAL_0_8_0: bool
