# Written by scripts/typing_stubs.py --write.
from lightlib_lightning import ANNOUNCED, Distribution, LOCAL_VERSION, SHIMS, announce, distributions, install, is_installed, replace, uninstall
__all__ = ['ANNOUNCED', 'Distribution', 'LOCAL_VERSION', 'SHIMS', 'announce', 'distributions', 'install', 'is_installed', 'replace', 'uninstall']
