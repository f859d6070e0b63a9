# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks.summary.model_summary import Summary as ModelSummary, summarize
from lightlib.pytorch.utilities.model_summary import model_summary, model_summary_deepspeed
from lightlib_lightning.tools.deepspeed_files import DeepSpeedSummary
from lightlib_lightning.tools.measures import LayerSummary, get_formatted_model_size, get_human_readable_count, parse_batch_shape
__all__ = ['DeepSpeedSummary', 'LayerSummary', 'ModelSummary', 'get_formatted_model_size', 'get_human_readable_count', 'model_summary', 'model_summary_deepspeed', 'parse_batch_shape', 'summarize']
