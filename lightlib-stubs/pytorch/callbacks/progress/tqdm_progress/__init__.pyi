# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import ProgressBar, TQDMProgressBar
from lightlib.compat.tools.tqdm_bar import Tqdm
from lightlib.compat.tools.values import convert_inf
from lightlib.compat.types import STEP_OUTPUT
from lightning_utilities.core.rank_zero import rank_zero_debug
__all__ = ['ProgressBar', 'STEP_OUTPUT', 'TQDMProgressBar', 'Tqdm', 'convert_inf', 'rank_zero_debug']
