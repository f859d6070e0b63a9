# Written by scripts/typing_stubs.py --write.
from lightlib.compat.environments import ClusterEnvironment, TorchElasticEnvironment
from lightlib.compat.loggers import log
from lightning_utilities.core.rank_zero import rank_zero_warn
__all__ = ['ClusterEnvironment', 'TorchElasticEnvironment', 'log', 'rank_zero_warn']
