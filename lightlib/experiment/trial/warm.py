"""Modules that each trial needs, imported once in the process from which trials are forked."""

from __future__ import annotations

import contextlib
import importlib
import os

from lightlib.experiment.trial import program
from lightlib.experiment.trial.forked import WORKER, follow

__all__ = ["program"]

# The server must not outlive its worker, as it would: Python's ends only once its children have ended, too.
if WORKER in os.environ:
    follow(int(os.environ[WORKER]))

# torch imports the first when the first optimizer is built; the second is that of the default logger
for name in ("torch._dynamo", "torch.utils.tensorboard", "torch.distributed.fsdp", "lightlib.strategies"):
    with contextlib.suppress(ImportError):  # a build of torch may lack them
        importlib.import_module(name)
