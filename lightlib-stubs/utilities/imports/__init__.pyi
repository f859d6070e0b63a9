# Written by scripts/typing_stubs.py --write.
from lightning_utilities.core.imports import RequirementCache, compare_version, package_available
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['RequirementCache', '_OMEGACONF_AVAILABLE', '_PYTHON_GREATER_EQUAL_3_11_0', '_RICH_AVAILABLE', '_TORCHMETRICS_GREATER_EQUAL_0_11', '_TORCHMETRICS_GREATER_EQUAL_0_8_0', '_TORCHMETRICS_GREATER_EQUAL_0_9_1', '_TORCHMETRICS_GREATER_EQUAL_1_0_0', '_TORCHVISION_AVAILABLE', '_TORCH_EQUAL_2_8', '_TORCH_EQUAL_2_9', '_TORCH_GREATER_EQUAL_2_6', '_TORCH_GREATER_EQUAL_2_8', 'compare_version', 'package_available', 'rank_zero_warn']
_OMEGACONF_AVAILABLE: bool
_PYTHON_GREATER_EQUAL_3_11_0: bool
_RICH_AVAILABLE: bool
_TORCHMETRICS_GREATER_EQUAL_0_11: bool
_TORCHMETRICS_GREATER_EQUAL_0_8_0: bool
_TORCHMETRICS_GREATER_EQUAL_0_9_1: bool
_TORCHMETRICS_GREATER_EQUAL_1_0_0: bool
_TORCHVISION_AVAILABLE: bool
_TORCH_EQUAL_2_8: bool
_TORCH_EQUAL_2_9: bool
_TORCH_GREATER_EQUAL_2_6: bool
_TORCH_GREATER_EQUAL_2_8: bool
