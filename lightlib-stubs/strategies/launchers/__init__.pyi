# Written by scripts/typing_stubs.py --write.
from lightlib.strategies.launchers import launcher, multiprocessing, subprocess_script, xla
from lightlib_lightning.internals.functions import SubprocessScriptLauncher as _SubprocessScriptLauncher
__all__ = ['_SubprocessScriptLauncher', 'launcher', 'multiprocessing', 'subprocess_script', 'xla']
