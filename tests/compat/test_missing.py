"""Bad input of compat: each error has the request, the names that exist, and the fix."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lightlib
from lightlib import compat
from lightlib.conventions import chosen
from lightlib.errors import MisconfigurationException
from lightlib_lightning.order import LIGHTNING
from tests.runs.quiet import QUIET


@pytest.fixture(autouse=True)
def as_lightning():
    compat.install()
    yield
    compat.uninstall()


def three_parts(error):
    return "Expected: " in str(error) and "Fix: " in str(error)


def test_enabled_twice_is_enabled_once():
    before = list(sys.meta_path)
    compat.install()
    assert sys.meta_path == before
    assert chosen() is LIGHTNING


def test_after_lightning_was_imported_the_importing_module_is_named(monkeypatch):
    compat.uninstall()
    real, project = type(sys)("pytorch_lightning"), type(sys)("project.train")
    real.__file__, project.pl = "/env/pytorch_lightning/__init__.py", real
    monkeypatch.setitem(sys.modules, "pytorch_lightning", real)
    monkeypatch.setitem(sys.modules, "project.train", project)
    with pytest.raises(MisconfigurationException, match=r"too late.*pytorch_lightning.* by project\.train") as raised:
        compat.install()
    assert three_parts(raised.value)
    assert "lightlib compat run" in str(raised.value)
    assert not compat.is_installed()
    assert chosen() is not LIGHTNING


class TestNamesOfModules:
    def test_a_name_that_neither_has(self):
        with pytest.raises(ImportError, match="cannot import name 'EarlyStoping'") as raised:
            from lightning.pytorch.callbacks import EarlyStoping  # noqa: F401
        assert not isinstance(raised.value, ModuleNotFoundError)
        assert three_parts(raised.value)
        assert "neither Lightning 2.6 nor lightlib has it" in str(raised.value)
        assert "Did you mean 'EarlyStopping'?" in str(raised.value)

    @pytest.mark.parametrize(
        ("module", "name", "place"),
        [
            ("lightning.pytorch", "ModelCheckpoint", "lightning.pytorch.callbacks"),
            ("pytorch_lightning.callbacks", "Trainer", "lightning.pytorch"),
            ("lightning", "LightningCLI", "lightning.pytorch.cli"),
            ("lightning.fabric.utilities", "seed_everything", "lightning.fabric"),
            ("lightning.pytorch", "Fabric", "lightning"),
            ("lightning.pytorch.callbacks", "History", "lightlib.callbacks"),
            ("lightning.pytorch", "StopTraining", "lightlib"),
        ],
    )
    def test_a_name_that_another_module_has(self, module, name, place):
        whose = "lightlib" if place.startswith("lightlib") else "Lightning 2.6"
        with pytest.raises(ImportError, match=f"cannot import name {name!r}.*: {whose} has it in {place!r}") as raised:
            exec(f"from {module} import {name}")
        assert three_parts(raised.value)
        fix = str(raised.value).rpartition("Fix: ")[2]
        assert fix == f"from {place} import {name}"
        exec(fix)

    @pytest.mark.parametrize(
        ("module", "name", "place"),
        [
            ("lightlib", "ModelCheckpoint", "lightlib.callbacks"),
            ("lightlib.callbacks", "Trainer", "lightlib"),
            ("lightlib", "LightningCLI", "lightlib.cli"),
            ("lightlib", "History", "lightlib.callbacks"),
            ("lightlib.callbacks", "StopTraining", "lightlib"),
        ],
    )
    def test_a_name_in_another_package_of_lightlib(self, module, name, place):
        with pytest.raises(ImportError, match=f"cannot import name {name!r}.*: lightlib has it in {place!r}") as raised:
            exec(f"from {module} import {name}")
        exec(str(raised.value).rpartition("Fix: ")[2])

    def test_read_as_an_attribute_it_is_an_attribute_error(self):
        import lightning.pytorch.callbacks

        with pytest.raises(AttributeError, match="has no attribute 'EarlyStoping'") as raised:
            lightning.pytorch.callbacks.EarlyStoping  # noqa: B018  reading it raises
        assert three_parts(raised.value)
        assert not hasattr(lightning.pytorch.callbacks, "EarlyStoping")
        assert getattr(lightning.pytorch.callbacks, "EarlyStoping", None) is None

    def test_a_private_name_that_is_not_provided(self):
        with pytest.raises(ImportError, match="'_DataConnectors' is a private name") as raised:
            from lightning.pytorch.trainer.connectors.data_connector import _DataConnectors  # noqa: F401
        assert three_parts(raised.value)
        assert "Did you mean '_DataConnector'?" in str(raised.value)

    def test_private_names_are_where_lightning_has_them(self):
        import lightning.pytorch.callbacks

        assert not hasattr(lightning.pytorch.callbacks, "_load_state")

    def test_patching_a_private_name_that_is_not_provided(self, monkeypatch):
        with pytest.raises(AttributeError, match="'_call_and_handle_interrupt'"):
            monkeypatch.setattr("lightning.pytorch.trainer.call._call_and_handle_interrupt", lambda: None)


class TestAttributes:
    def test_of_a_trainer(self):
        trainer = lightlib.Trainer(**QUIET)
        with pytest.raises(AttributeError, match="Trainer has no '_run_stage' in lightlib") as raised:
            trainer._run_stage  # noqa: B018  reading it raises
        assert three_parts(raised.value)
        assert "_accelerator_connector" in str(raised.value)
        assert not hasattr(trainer, "nothing")
        with pytest.raises(AttributeError, match="'Trainer' object has no attribute 'nothing'"):
            trainer.nothing  # noqa: B018  as above

    @pytest.mark.parametrize("chain", ["fit_loop.epoch_loop._kwargs", "_data_connector._prepare_dataloader"])
    def test_of_an_internal(self, chain):
        this = lightlib.Trainer(**QUIET)
        *names, last = chain.split(".")
        for name in names:
            this = getattr(this, name)
        with pytest.raises(AttributeError, match=f"has no '{last}' in lightlib") as raised:
            getattr(this, last)
        assert three_parts(raised.value)

    def test_of_an_internal_class(self):
        from lightning.pytorch.loops.fit_loop import _FitLoop

        with pytest.raises(AttributeError, match="FitLoop has no '_advance'"):
            _FitLoop._advance  # noqa: B018  as above

    def test_without_compat_the_public_counterpart_is_named(self):
        trainer = lightlib.Trainer(**QUIET)
        assert trainer.fit_loop.max_epochs == trainer.max_epochs
        compat.uninstall()
        with pytest.raises(AttributeError, match=r"`fit_loop` is internal to Lightning; use `trainer\.progress`"):
            trainer.fit_loop  # noqa: B018  as above


@pytest.mark.processes
def test_import_lightlib_imports_nothing_of_compat():
    code = "import sys, lightlib; print([name for name in sys.modules if name.startswith('lightlib_lightning')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
