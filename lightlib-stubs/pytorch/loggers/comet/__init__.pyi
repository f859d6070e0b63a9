# Written by scripts/typing_stubs.py --write.
from lightlib.compat.internals.functions import rank_from_environment as _get_rank
from lightlib.compat.internals.logged import convert_params as _convert_params
from lightlib.compat.loggers import log
from lightlib.compat.tools.values import FRAMEWORK_NAME
from lightlib.compat.types import comet_experiment
from lightlib.loggers import CometLogger, Logger, rank_zero_experiment
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['CometLogger', 'FRAMEWORK_NAME', 'Logger', 'RequirementCache', '_COMET_AVAILABLE', '_convert_params', '_get_rank', 'comet_experiment', 'log', 'rank_zero_experiment', 'rank_zero_only']
_COMET_AVAILABLE: bool
