# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ProgressBar, RichProgressBar, RichProgressBarTheme
from lightlib_lightning.tools.rich_columns import BatchesProcessedColumn, CustomBarColumn, CustomInfiniteTask, CustomProgress, CustomTimeColumn, MetricsTextColumn, ProcessingSpeedColumn
from lightlib_lightning.types import STEP_OUTPUT
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['BatchesProcessedColumn', 'CustomBarColumn', 'CustomInfiniteTask', 'CustomProgress', 'CustomTimeColumn', 'MetricsTextColumn', 'ProcessingSpeedColumn', 'ProgressBar', 'RichProgressBar', 'RichProgressBarTheme', 'STEP_OUTPUT', '_IS_INTERACTIVE', '_RICH_AVAILABLE', 'apply_to_collection']
_IS_INTERACTIVE: bool
_RICH_AVAILABLE: bool
