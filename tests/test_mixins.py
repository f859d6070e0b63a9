"""A mixin after a class of lightlib in the bases is initialised: every `__init__` calls the next one."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from dataclasses import is_dataclass

import pytest

import lightlib
from lightlib import callbacks, loggers, samplers
from lightlib.strategies import MeshStrategy
from tests.runs.quiet import QUIET

PLACES = (
    "lightlib",
    *(
        f"lightlib.{name}"
        for name in ("callbacks", "loggers", "strategies", "profilers", "precision", "samplers", "evaluation", "tuner")
    ),
    *(f"lightlib.{name}" for name in ("accelerators", "cli", "fabric", "transforms", "optim", "launch.environment")),
)


def initialisers():
    """Return the classes of lightlib with an `__init__` that public classes are or derive from, by name."""
    found = {}
    for place in map(importlib.import_module, PLACES):
        for name in getattr(place, "__all__", None) or dir(place):
            public = None if name.startswith("_") else getattr(place, name, None)
            for kind in public.__mro__ if inspect.isclass(public) else ():
                function = vars(kind).get("__init__")
                ours = kind.__module__.startswith("lightlib.")
                if ours and inspect.isfunction(function) and not is_dataclass(kind):  # whose fields are its arguments
                    found[f"{kind.__module__}.{kind.__qualname__}"] = function
    return found


def calls_the_next(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return "super().__init__" in calls


def test_every_initialiser_of_a_public_class_calls_the_next():
    found = initialisers()
    assert len(found) > 100
    missing = [name for name, function in found.items() if not calls_the_next(function)]
    assert missing == []


class Mixin:
    def __init__(self):
        self.ready = True


MADE = {
    "EarlyStopping": lambda base: base("loss"),
    "ModelCheckpoint": lambda base: base(),
    "Timer": lambda base: base(),
    "GradientAccumulationScheduler": lambda base: base({1: 2}),
    "LearningRateMonitor": lambda base: base(),
    "BackboneFinetuning": lambda base: base(),
    "TQDMProgressBar": lambda base: base(),
    "RichProgressBar": lambda base: base(),
    "EMAWeightAveraging": lambda base: base(),
    "CSVLogger": lambda base: base("logs"),
    "TensorBoardLogger": lambda base: base("logs"),
    "Trainer": lambda base: base(**QUIET),
    "Fabric": lambda base: base(accelerator="cpu"),
    "MeshStrategy": lambda base: base(shard=1),
    "RepeatSampler": lambda base: base([1, 2], 2),
}


@pytest.mark.parametrize("name", MADE)
def test_a_mixin_is_initialised(name):
    places = (lightlib, callbacks, loggers, samplers)
    base = MeshStrategy if name == "MeshStrategy" else next(getattr(p, name) for p in places if hasattr(p, name))
    assert MADE[name](type("Mixed", (base, Mixin), {})).ready
