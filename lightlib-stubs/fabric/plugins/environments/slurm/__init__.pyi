# Written by scripts/typing_stubs.py --write.
from lightlib.compat.environments import ClusterEnvironment
from lightlib.compat.loggers import log
from lightlib.launch import SLURMEnvironment
from lightlib.report import PossibleUserWarning
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['ClusterEnvironment', 'PossibleUserWarning', 'SLURMEnvironment', '_IS_WINDOWS', 'log', 'rank_zero_warn']
_IS_WINDOWS: bool
