# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from lightlib.pytorch.callbacks.progress import progress_bar, rich_progress, tqdm_progress
__all__ = ['ProgressBar', 'RichProgressBar', 'TQDMProgressBar', 'progress_bar', 'rich_progress', 'tqdm_progress']
