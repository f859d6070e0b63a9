# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelSummary
from lightlib_lightning.tools.deepspeed_files import DeepSpeedLayerSummary, DeepSpeedSummary, deepspeed_param_size
from lightlib_lightning.tools.measures import LayerSummary, NOT_APPLICABLE, get_human_readable_count
from lightning_utilities.core.imports import RequirementCache
__all__ = ['DeepSpeedLayerSummary', 'DeepSpeedSummary', 'LayerSummary', 'ModelSummary', 'NOT_APPLICABLE', 'RequirementCache', 'deepspeed_param_size', 'get_human_readable_count']
