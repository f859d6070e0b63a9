# Written by scripts/typing_stubs.py --write.
from lightlib import _graveyard, accelerators, callbacks, checkpoint, cli, core, data, demos, distributed, errors, evaluation, experiment, fabric, launch, loggers, loops, losses, optim, overrides, paths, plugins, precision, profilers, samplers, serve, strategies, testing, trainer, tuner, utilities
from lightlib.callbacks.callback import Callback
from lightlib.command.plot.inline import plot
from lightlib.core.module.datamodule import DataModule, DataModule as LightningDataModule
from lightlib.core.module.initialization import init_weights
from lightlib.core.module.module import Module as LightningModule, Module
from lightlib.core.module.weights import load_weights
from lightlib.core.setup.length import training_length
from lightlib.core.trainer import Trainer
from lightlib.data.combined import CombinedLoader
from lightlib.data.seed import isolate_rng, seed_everything
from lightlib.errors import InvalidHP, StopTraining
from lightlib.fabric.fabric import Fabric
from lightlib.simulation.plan import plan
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.version import __version__
from lightlib_lightning.tools.values import LIGHTNING_LOGO, cli_lightning_logo, disable_possible_user_warnings
from lightning_utilities.core.imports import module_available
__all__ = ['Callback', 'CombinedLoader', 'DataModule', 'Fabric', 'InvalidHP', 'LIGHTNING_LOGO', 'LightningDataModule', 'LightningModule', 'Module', 'ParallelPlan', 'StopTraining', 'Trainer', '__version__', '_graveyard', 'accelerators', 'callbacks', 'checkpoint', 'cli', 'cli_lightning_logo', 'core', 'data', 'demos', 'disable_possible_user_warnings', 'distributed', 'errors', 'evaluation', 'experiment', 'fabric', 'init_weights', 'isolate_rng', 'launch', 'load_weights', 'loggers', 'loops', 'losses', 'module_available', 'optim', 'overrides', 'paths', 'plan', 'plot', 'plugins', 'precision', 'profilers', 'samplers', 'seed_everything', 'serve', 'strategies', 'testing', 'trainer', 'training_length', 'tuner', 'utilities']
