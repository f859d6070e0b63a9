"""Lightning's module tree: one object for each module, one class behind all spellings, clear errors."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest
from packaging.version import Version

import lightlib
from lightlib import compat
from lightlib.errors import MisconfigurationException
from lightlib_lightning.finder import ROOTS, names


@pytest.fixture(autouse=True)
def as_lightning():
    """Switch compat on for one test."""
    compat.install()
    yield
    compat.uninstall()


def test_a_module_is_one_object_by_all_its_names():
    import lightning
    import lightning.fabric.utilities
    import lightning_fabric.utilities
    import pytorch_lightning
    import pytorch_lightning.callbacks.early_stopping as by_old_name

    assert lightning.pytorch is pytorch_lightning is sys.modules["lightning.pytorch"]
    assert lightning.pytorch.callbacks.early_stopping is by_old_name
    assert lightning.fabric.utilities is lightning_fabric.utilities


def test_every_module_of_lightning_can_be_imported_by_its_names():
    for path in names():
        module = importlib.import_module(f"lightning.{path}".rstrip("."))
        for root, below in ROOTS.items():
            if below and (path == below or path.startswith(f"{below}.")):
                assert importlib.import_module(f"{root}{path.removeprefix(below)}") is module


def test_every_public_name_can_be_imported():
    for path, public in names().items():
        module = importlib.import_module(f"lightning.{path}".rstrip("."))
        for name in public.split():
            assert getattr(module, name) is getattr(module, name)


def test_classes_are_lightlibs():
    from lightning.pytorch.callbacks.early_stopping import EarlyStopping
    from pytorch_lightning import LightningModule, Trainer

    assert EarlyStopping is lightlib.callbacks.EarlyStopping
    assert (LightningModule, Trainer) == (lightlib.Module, lightlib.Trainer)


def test_the_version_compares_as_lightning_2_6():
    import lightning

    assert Version("2.6") <= Version(lightning.__version__) < Version("2.7")
    assert lightning.pytorch.__version__ == lightning.__version__


def test_names_can_be_set_and_stay_set():
    import lightning.pytorch as pl

    pl.Trainer = "patched"
    assert importlib.import_module("pytorch_lightning").Trainer == "patched"
    assert lightlib.Trainer != "patched"


def test_star_imports_bring_the_public_names():
    bound: dict = {}
    exec("from lightning.pytorch import *", bound)
    assert bound["Trainer"] is lightlib.Trainer
    assert "os" not in bound


def test_a_pickle_that_names_lightnings_path_gives_our_class():
    written = b"clightning.pytorch.utilities.parsing\nAttributeDict\n."
    assert pickle.loads(written) is lightlib.core.values.hparams.AttributeDict


@pytest.mark.parametrize("name", ["lightning.nothing", "pytorch_lightning.callbacks.nothing", "lightning.app"])
def test_what_lightning_does_not_have_is_not_found(name):
    with pytest.raises(ModuleNotFoundError, match=name):
        importlib.import_module(name)


def test_an_unknown_name_is_an_import_error_and_no_attribute():
    import lightning.pytorch.callbacks

    with pytest.raises(ImportError, match=r"cannot import name .Nothing. from .lightning\.pytorch\.callbacks."):
        from lightning.pytorch.callbacks import Nothing  # noqa: F401
    assert not hasattr(lightning.pytorch.callbacks, "Nothing")


def test_a_name_with_nothing_behind_it_can_be_imported_and_says_so_when_it_is_used():
    from lightning.pytorch.accelerators import XLAAccelerator

    class Mine(XLAAccelerator):
        pass

    assert not isinstance("cpu", XLAAccelerator)
    with pytest.raises(MisconfigurationException, match="Mine is a name of Lightning that lightlib does not provide"):
        Mine()


class TestInstall:
    def test_twice_is_once(self):
        before = list(sys.meta_path)
        compat.install()
        assert sys.meta_path == before

    def test_after_lightning_was_imported_it_names_who_imported_it(self, monkeypatch):
        monkeypatch.setattr(
            sys, "meta_path", [one for one in sys.meta_path if not isinstance(one, compat.finder.Finder)]
        )
        real = type(sys)("lightning")
        real.__file__ = "/somewhere/lightning/__init__.py"
        monkeypatch.setitem(sys.modules, "lightning", real)
        project = type(sys)("project")
        project.pl = real
        monkeypatch.setitem(sys.modules, "project", project)
        with pytest.raises(MisconfigurationException) as raised:
            compat.install()
        assert "/somewhere/lightning/__init__.py by project" in str(raised.value)
        assert "lightlib compat run" in str(raised.value)


def test_uninstall_leaves_no_trace():
    import lightning.pytorch as pl
    import pytorch_lightning.callbacks  # noqa: F401

    compat.uninstall()
    assert not compat.is_installed()
    assert [name for name in sys.modules if name.partition(".")[0] in ROOTS] == []
    assert pl.Trainer is lightlib.Trainer
    compat.uninstall()
    compat.install()
    assert importlib.import_module("lightning.pytorch") is not pl


def test_uninstall_leaves_a_real_lightning(monkeypatch):
    compat.uninstall()
    real = type(sys)("lightning")
    monkeypatch.setitem(sys.modules, "lightning", real)
    compat.uninstall()
    assert sys.modules["lightning"] is real
