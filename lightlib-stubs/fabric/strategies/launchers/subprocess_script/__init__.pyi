# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.internals.functions import SubprocessScriptLauncher as _SubprocessScriptLauncher
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import rank_prefixed_message
__all__ = ['ClusterEnvironment', 'RequirementCache', '_HYDRA_AVAILABLE', '_SubprocessScriptLauncher', 'rank_prefixed_message']
_HYDRA_AVAILABLE: bool
