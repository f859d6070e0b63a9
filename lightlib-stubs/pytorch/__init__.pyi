# Written by scripts/typing_stubs.py --write.
from lightlib import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightlib.pytorch import _graveyard, accelerators, callbacks, cli, core, demos, loggers, loops, overrides, plugins, profilers, serve, strategies, trainer, tuner, utilities
from lightlib_lightning.tools.values import LIGHTNING_LOGO, cli_lightning_logo, disable_possible_user_warnings
from lightning_utilities.core.imports import module_available
__all__ = ['Callback', 'LIGHTNING_LOGO', 'LightningDataModule', 'LightningModule', 'Trainer', '_graveyard', 'accelerators', 'callbacks', 'cli', 'cli_lightning_logo', 'core', 'demos', 'disable_possible_user_warnings', 'loggers', 'loops', 'module_available', 'overrides', 'plugins', 'profilers', 'seed_everything', 'serve', 'strategies', 'trainer', 'tuner', 'utilities']
