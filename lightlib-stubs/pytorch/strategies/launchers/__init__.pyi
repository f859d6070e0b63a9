# Written by scripts/typing_stubs.py --write.
from lightlib.compat.internals.functions import SubprocessScriptLauncher as _SubprocessScriptLauncher
from lightlib.pytorch.strategies.launchers import launcher, multiprocessing, subprocess_script, xla
__all__ = ['_SubprocessScriptLauncher', 'launcher', 'multiprocessing', 'subprocess_script', 'xla']
