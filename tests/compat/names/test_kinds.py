"""Every name that a module of Lightning 2.6 binds is there under compat, and the same kind of object."""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path

import pytest

from lightlib import compat
from lightlib_lightning import absent, objects
from lightlib_lightning.absent import Absent
from scripts.lightning_paths import kind_of

# A sweep over Lightning 2.6.6 (scripts/lightning_paths.py): names by kind, and by path where those differ.
RECORD = json.loads(Path(__file__).with_name("kinds_2_6.json").read_text(encoding="utf-8"))
KINDS = {name: kind for kind, names in RECORD.items() for name in names.split()}
# Kinds that differ: functions that are absent are stand-ins, and `with pl_legacy_patch():` needs no class.
ABSENT = ("download_model_from_registry", "fabric_plugin_to_compute_dtype", "find_model_local_ckpt_path",
          "prepare_for_backward")  # fmt: skip
DIFFERENT = {**dict.fromkeys(ABSENT, "class"), "pl_legacy_patch": "function"}


@pytest.fixture(autouse=True)
def as_lightning():
    compat.install()
    yield
    compat.uninstall()


def recorded(path, name):
    return KINDS.get(f"{path}.{name}") or KINDS[name]


def is_of(kind, value):
    return kind == kind_of(value) or kind in {each.__name__ for each in type(value).__mro__}


@pytest.mark.parametrize("path", objects.names())
def test_every_name_of_a_module_is_there_and_of_its_kind(path):
    module = importlib.import_module(f"lightning.{path}".rstrip("."))
    wrong = []
    for name in (*objects.names()[path].split(), *objects.imported(path)):
        value = getattr(module, name)
        if not path.startswith("pytorch.serve") and not is_of(DIFFERENT.get(name) or recorded(path, name), value):
            wrong.append(f"{name} is a {kind_of(value)}")
    assert wrong == []


def test_the_sweep_has_every_name_that_is_assigned():
    """Those that an outside test missed: aliases, type variables, loggers, and objects of torch."""
    for path, names in {
        "pytorch.cli": "OptimizerCallable LRSchedulerCallable LRSchedulerType ModuleType",
        "pytorch.utilities.types": "LRSchedulerType LRSchedulerPLType",
        "pytorch.core.module": "MODULE_OPTIMIZERS log",
        "pytorch.utilities.data": "BType",
        "pytorch.demos.transformer": "MultiheadAttention",
        "fabric.strategies.strategy": "TBroadcast TReduce",
        "fabric.utilities.distributed": "ReduceOp group",
        "fabric.utilities.types": "ReduceOp RedOpType ProcessGroup UntypedStorage",
    }.items():
        assert set(names.split()) <= {*objects.names()[path].split(), *objects.imported(path)}
    assert sum("log" in names.split() for names in objects.names().values()) >= 46


def test_absent_names_alone_are_stand_ins():
    for path, names in objects.names().items():
        module = importlib.import_module(f"lightning.{path}".rstrip("."))
        stand_ins = {
            name
            for name in names.split()
            if isinstance(kind := getattr(module, name), type) and issubclass(kind, Absent)
        }
        assert stand_ins <= set(absent.INSTEAD), path


def test_every_private_name_is_where_lightning_has_it():
    served = set()
    for path in objects.names():
        module = importlib.import_module(f"lightning.{path}".rstrip("."))
        for name in objects.private_names(path):
            assert getattr(module, name) is getattr(module, name)
            served.add(name)
    assert set(objects.PRIVATE) <= served


def test_the_objects_are_the_ones_that_are_meant():
    import torch
    from lightning.fabric.utilities.distributed import ReduceOp
    from lightning.fabric.wrappers import _FabricModule, _FabricOptimizer
    from lightning.pytorch.callbacks.early_stopping import log
    from lightning.pytorch.cli import OptimizerCallable, pl
    from lightning.pytorch.cli import torch as theirs
    from lightning.pytorch.trainer.connectors.logger_connector.result import _OUT_DICT

    import lightlib
    from lightlib import cli

    assert ReduceOp is torch.distributed.ReduceOp
    assert theirs is torch
    assert pl is importlib.import_module("lightning.pytorch")
    assert OptimizerCallable is cli.OptimizerCallable
    assert log is logging.getLogger("lightning.pytorch.callbacks.early_stopping")
    assert _OUT_DICT == dict[str, torch.Tensor]  # noqa: SIM300  the alias is not a constant
    fabric = lightlib.Fabric(accelerator="cpu")
    net = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert isinstance(model, _FabricModule)
    assert isinstance(optimizer, _FabricOptimizer)


def test_without_compat_modules_of_lightning_are_those_below_lightlib():
    compat.uninstall()
    from lightlib.utilities.parsing import pl  # a name that Lightning's module imports

    assert pl is importlib.import_module("lightlib")
