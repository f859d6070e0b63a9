# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.environments import ClusterEnvironment
from lightlib_lightning.internals.functions import SubprocessScriptLauncher as _SubprocessScriptLauncher
from lightlib_lightning.loggers import log
from lightning_utilities.core.imports import RequirementCache
__all__ = ['ClusterEnvironment', 'RequirementCache', '_HYDRA_AVAILABLE', '_SubprocessScriptLauncher', 'log']
_HYDRA_AVAILABLE: bool
