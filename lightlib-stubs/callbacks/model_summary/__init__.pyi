# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import ModelSummary
from lightlib.callbacks.summary.model_summary import Summary, summarize
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.deepspeed_files import DeepSpeedSummary
__all__ = ['Callback', 'DeepSpeedSummary', 'ModelSummary', 'Summary', 'log', 'summarize']
