# Written by scripts/typing_stubs.py --write.
from lightlib import seed_everything
from lightlib.fabric import _graveyard, accelerators, cli, connector, fabric, loggers, plugins, strategies, utilities, wrappers
from lightlib.fabric.fabric import Fabric
from lightlib.fabric.wrapped import is_wrapped
from lightlib_lightning.tools.values import disable_possible_user_warnings
from lightning_utilities.core.imports import package_available
__all__ = ['Fabric', '_graveyard', 'accelerators', 'cli', 'connector', 'disable_possible_user_warnings', 'fabric', 'is_wrapped', 'loggers', 'package_available', 'plugins', 'seed_everything', 'strategies', 'utilities', 'wrappers']
