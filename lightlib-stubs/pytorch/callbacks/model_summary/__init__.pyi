# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import ModelSummary
from lightlib.callbacks.summary.model_summary import Summary, summarize
from lightlib.compat.loggers import log
from lightlib.compat.tools.deepspeed_files import DeepSpeedSummary
__all__ = ['Callback', 'DeepSpeedSummary', 'ModelSummary', 'Summary', 'log', 'summarize']
