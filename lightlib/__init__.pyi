# Written by scripts/typing_stubs.py --write.
from lightlib import accelerators as accelerators, callbacks as callbacks, checkpoint as checkpoint, cli as cli, data as data, distributed as distributed, errors as errors, evaluation as evaluation, experiment as experiment, fabric as fabric, launch as launch, loggers as loggers, losses as losses, optim as optim, paths as paths, precision as precision, profilers as profilers, samplers as samplers, strategies as strategies, testing as testing
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
__all__ = ['Callback', 'CombinedLoader', 'DataModule', 'Fabric', 'InvalidHP', 'LightningDataModule', 'LightningModule', 'Module', 'ParallelPlan', 'StopTraining', 'Trainer', '__version__', 'init_weights', 'isolate_rng', 'load_weights', 'plan', 'plot', 'seed_everything', 'training_length']
