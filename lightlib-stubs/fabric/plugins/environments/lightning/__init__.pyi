# Written by scripts/typing_stubs.py --write.
from lightlib.compat.environments import ClusterEnvironment, LightningEnvironment
from lightlib.launch import free_port as find_free_network_port
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['ClusterEnvironment', 'LightningEnvironment', 'find_free_network_port', 'rank_zero_only']
