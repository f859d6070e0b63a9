# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.measures import get_torchvision_model
from lightlib_lightning.tools.small_functions import is_overridden
from lightning_utilities.core.imports import RequirementCache
__all__ = ['RequirementCache', 'get_torchvision_model', 'is_overridden']
