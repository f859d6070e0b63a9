"""`import lightlib`: sub-packages are imported on first use, and dir() lists the users' names."""

from __future__ import annotations

import gc
import importlib
from types import ModuleType, SimpleNamespace

import pytest

import lightlib
from lightlib import lazy
from lightlib.index import MODULE, Row
from tests.processes import programs

PACKAGES = (
    "accelerators", "callbacks", "checkpoint", "cli", "data", "distributed", "errors", "evaluation", "experiment",
    "fabric", "launch",
    "loggers", "losses", "optim", "paths", "precision", "profilers", "samplers", "strategies", "testing",
)  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_a_sub_package_is_an_attribute(name):
    assert lightlib.__getattr__(name) is importlib.import_module(f"lightlib.{name}")
    assert isinstance(getattr(lightlib, name), ModuleType)


def test_dir_lists_what_users_need_and_nothing_else():
    shown = {name for name in dir(lightlib) if not name.startswith("__")}
    assert shown == {*lightlib.__all__, *PACKAGES} - {"__version__"}
    assert {"__version__", "__doc__", "__path__"} <= set(dir(lightlib))


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'lightlib' has no attribute 'Trianer'"):
        _ = lightlib.Trianer


@pytest.mark.processes
def test_in_a_program_of_its_own_nothing_is_imported_before_it_is_used():
    code = (
        "import sys, lightlib as pl\n"
        "print([name for name in ('torch', 'jsonargparse', 'rich', 'lightlib.callbacks') if name in sys.modules])\n"
        "print(sorted(name for name in sys.modules if name.startswith('lightlib')))\n"
        "print(pl.callbacks.EarlyStopping('x').monitor, pl.loggers.CSVLogger.__name__)\n"
    )
    ours = ["lightlib", "lightlib.index", "lightlib.lazy", "lightlib.start_folder"]
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, f"[]\n{ours}\nx CSVLogger\n"), done.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_paused_during_an_import(monkeypatch, enabled):
    during = []

    def import_module(name):
        during.append(gc.isenabled())
        if name.endswith("broken"):
            raise ImportError(name)

    monkeypatch.setattr(lazy, "importlib", SimpleNamespace(import_module=import_module))
    monkeypatch.setitem(lazy.INDEX, "package", (Row("part", MODULE), Row("broken", MODULE)))
    _, get, _ = lazy.exports("package")
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        get("part")
        assert gc.isenabled() is enabled
        with pytest.raises(ImportError):
            get("broken")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert during == [False, False]
