# Written by scripts/typing_stubs.py --write.
from lightlib.compat.environments import ClusterEnvironment
from lightlib.compat.internals.functions import SubprocessScriptLauncher as _SubprocessScriptLauncher
from lightlib.compat.loggers import log
from lightning_utilities.core.imports import RequirementCache
__all__ = ['ClusterEnvironment', 'RequirementCache', '_HYDRA_AVAILABLE', '_SubprocessScriptLauncher', 'log']
_HYDRA_AVAILABLE: bool
