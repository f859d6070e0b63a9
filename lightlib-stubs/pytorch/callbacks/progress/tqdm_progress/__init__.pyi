# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ProgressBar, TQDMProgressBar
from lightlib_lightning.tools.tqdm_bar import Tqdm
from lightlib_lightning.tools.values import convert_inf
from lightlib_lightning.types import STEP_OUTPUT
from lightning_utilities.core.rank_zero import rank_zero_debug
__all__ = ['ProgressBar', 'STEP_OUTPUT', 'TQDMProgressBar', 'Tqdm', 'convert_inf', 'rank_zero_debug']
