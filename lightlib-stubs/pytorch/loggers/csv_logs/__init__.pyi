# Written by scripts/typing_stubs.py --write.
from lightlib.loggers import CSVLogger, Logger, rank_zero_experiment
from lightlib.loggers.csv import ExperimentWriter
from lightlib_lightning.internals.logged import convert_params as _convert_params
from lightlib_lightning.tools.fabric_loggers import CSVLogger as FabricCSVLogger
from lightlib_lightning.tools.parsing import save_hparams_to_yaml
from lightlib_lightning.types import _PATH
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['CSVLogger', 'ExperimentWriter', 'FabricCSVLogger', 'Logger', '_PATH', '_convert_params', 'rank_zero_experiment', 'rank_zero_only', 'save_hparams_to_yaml']
