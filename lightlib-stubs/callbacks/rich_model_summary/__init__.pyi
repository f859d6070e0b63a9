# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ModelSummary, RichModelSummary
from lightlib_lightning.tools.measures import get_formatted_model_size, get_human_readable_count
__all__ = ['ModelSummary', 'RichModelSummary', '_RICH_AVAILABLE', 'get_formatted_model_size', 'get_human_readable_count']
_RICH_AVAILABLE: bool
