# Written by scripts/typing_stubs.py --write.
from lightlib.launch import SLURMEnvironment
from lightlib.report import PossibleUserWarning
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.loggers import log
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['ClusterEnvironment', 'PossibleUserWarning', 'SLURMEnvironment', '_IS_WINDOWS', 'log', 'rank_zero_warn']
_IS_WINDOWS: bool
