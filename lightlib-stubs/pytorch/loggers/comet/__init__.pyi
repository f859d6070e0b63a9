# Written by scripts/typing_stubs.py --write.
from lightlib.loggers import CometLogger, Logger, rank_zero_experiment
from lightlib_lightning.internals.functions import rank_from_environment as _get_rank
from lightlib_lightning.internals.logged import convert_params as _convert_params
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.values import FRAMEWORK_NAME
from lightlib_lightning.types import comet_experiment
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['CometLogger', 'FRAMEWORK_NAME', 'Logger', 'RequirementCache', '_COMET_AVAILABLE', '_convert_params', '_get_rank', 'comet_experiment', 'log', 'rank_zero_experiment', 'rank_zero_only']
_COMET_AVAILABLE: bool
