"""lightlib: train PyTorch models. The public names; Lightning's names are aliases."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lightlib import lazy
from lightlib.start_folder import remember as _remember
from lightlib.version import __version__

if TYPE_CHECKING:
    from lightlib import accelerators as accelerators
    from lightlib import callbacks as callbacks
    from lightlib import checkpoint as checkpoint
    from lightlib import cli as cli
    from lightlib import distributed as distributed
    from lightlib import errors as errors
    from lightlib import evaluation as evaluation
    from lightlib import experiment as experiment
    from lightlib import fabric as fabric
    from lightlib import launch as launch
    from lightlib import loggers as loggers
    from lightlib import optim as optim
    from lightlib import paths as paths
    from lightlib import precision as precision
    from lightlib import profilers as profilers
    from lightlib import samplers as samplers
    from lightlib import strategies as strategies
    from lightlib import testing as testing
    from lightlib.callbacks.callback import Callback
    from lightlib.core.module.datamodule import DataModule
    from lightlib.core.module.datamodule import DataModule as LightningDataModule
    from lightlib.core.module.initialization import init_weights
    from lightlib.core.module.module import Module
    from lightlib.core.module.module import Module as LightningModule
    from lightlib.core.setup.length import training_length
    from lightlib.core.trainer import Trainer
    from lightlib.data.combined import CombinedLoader
    from lightlib.data.seed import isolate_rng, seed_everything
    from lightlib.errors import InvalidHP, StopTraining
    from lightlib.fabric.fabric import Fabric
    from lightlib.strategies.axes.plan import ParallelPlan

__all__ = [
    "Callback",
    "CombinedLoader",
    "DataModule",
    "Fabric",
    "InvalidHP",
    "LightningDataModule",
    "LightningModule",
    "Module",
    "ParallelPlan",
    "StopTraining",
    "Trainer",
    "__version__",
    "init_weights",
    "isolate_rng",
    "seed_everything",
    "training_length",
]

_remember()  # the working directory, which the program may change

_get, _names = lazy.attributes(
    __name__,
    {
        "Callback": "callbacks.callback",
        "CombinedLoader": "data.combined",
        "DataModule": "core.module.datamodule",
        "Fabric": "fabric.fabric",
        "InvalidHP": "errors",
        "LightningDataModule": "core.module.datamodule:DataModule",
        "LightningModule": "core.module.module:Module",
        "Module": "core.module.module",
        "ParallelPlan": "strategies.axes.plan",
        "StopTraining": "errors",
        "Trainer": "core.trainer",
        "init_weights": "core.module.initialization",
        "isolate_rng": "data.seed",
        "seed_everything": "data.seed",
        "training_length": "core.setup.length",
    },
    (
        "accelerators", "callbacks", "checkpoint", "cli", "distributed", "errors", "evaluation", "experiment", "fabric",
        "launch", "loggers", "optim", "paths", "precision", "profilers", "samplers", "strategies", "testing",
    ),
)  # fmt: skip

if not TYPE_CHECKING:  # type checkers see the imports above
    __getattr__, __dir__ = _get, _names
    if lazy.LightningPaths not in sys.meta_path:
        sys.meta_path.append(lazy.LightningPaths)
