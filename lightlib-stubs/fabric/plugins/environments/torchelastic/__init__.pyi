# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.environments import ClusterEnvironment, TorchElasticEnvironment
from lightlib_lightning.loggers import log
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['ClusterEnvironment', 'TorchElasticEnvironment', 'log', 'rank_zero_warn']
