# Written by scripts/typing_stubs.py --write.
from lightlib.launch import free_port as find_free_network_port
from lightlib_lightning.environments import ClusterEnvironment, LightningEnvironment
from lightning_utilities.core.rank_zero import rank_zero_only
__all__ = ['ClusterEnvironment', 'LightningEnvironment', 'find_free_network_port', 'rank_zero_only']
