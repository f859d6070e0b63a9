# Written by scripts/typing_stubs.py --write.
from lightlib.launch import free_port as find_free_network_port
from lightlib_lightning.environments import ClusterEnvironment, MPIEnvironment
from lightlib_lightning.loggers import log
from lightning_utilities.core.imports import RequirementCache
__all__ = ['ClusterEnvironment', 'MPIEnvironment', 'RequirementCache', '_MPI4PY_AVAILABLE', 'find_free_network_port', 'log']
_MPI4PY_AVAILABLE: bool
