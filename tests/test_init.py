"""`import lightlib`: sub-packages are imported on first use, and dir() lists what users need."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

import lightlib
from tests.processes import programs

PACKAGES = (
    "accelerators", "callbacks", "checkpoint", "cli", "errors", "launch", "loggers", "optim", "precision", "profilers",
    "strategies", "testing",
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
        "print(pl.callbacks.EarlyStopping('x').monitor, pl.loggers.CSVLogger.__name__)\n"
    )
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\nx CSVLogger\n"), done.stderr


@pytest.mark.processes
def test_an_import_does_not_wake_the_garbage_collector():
    code = (
        "import gc, torch\n"
        "woken = []\n"
        "gc.callbacks.append(lambda phase, found: woken.append(found['generation']))\n"
        "import lightlib\n"
        "woken.clear()\n"
        "get = lightlib.__getattr__\n"
        "trainer = get('Trainer')\n"
        "during = len(woken)\n"
        "print(during, gc.isenabled())\n"
        "gc.disable()\n"
        "get('CombinedLoader')\n"
        "print(gc.isenabled())\n"
    )
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, "0 True\nFalse\n"), done.stderr
