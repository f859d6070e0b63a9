"""packaging/lightlib-as-lightning: its names and versions, and the refusal to replace Lightning."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lightlib import compat
from lightlib_lightning.finder import VERSION
from tests.architecture.rules import ROOT
from tests.processes import programs

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")

FOLDER = ROOT / "packaging" / "lightlib-as-lightning"
NAMES = ("lightning", "pytorch-lightning")


def project(name: str) -> dict:
    return tomllib.loads((FOLDER / name / "pyproject.toml").read_text())["project"]


@pytest.fixture
def hook(monkeypatch):
    """The hook of the build, with an environment in the current folder."""
    base = types.ModuleType("hatchling.metadata.plugin.interface")
    base.MetadataHookInterface = type("MetadataHookInterface", (), {"root": str(FOLDER)})
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    spec = importlib.util.spec_from_file_location("hatch_build", FOLDER / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"purelib": ".", "platlib": "."})
    return module.RefusesRealLightning()


def installed(name: str, version: str) -> None:
    folder = Path(f"{name.replace('-', '_')}-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wanted", [">=2", ">=2.0,<2.7", "==2.6.6", "!=2.6.2,!=2.6.3,<2.7.0,>=2.0.0"])
def test_it_satisfies_what_packages_require(name, wanted):
    found = project(name)
    assert found["name"] == name
    assert Requirement(f"{name}{wanted}").specifier.contains(found["version"])
    assert found["version"] == f"{VERSION}{compat.LOCAL_VERSION}"
    assert compat.Distribution(name, found["version"]).ours


def test_the_one_that_is_named_installs_both(hook):
    metadata = {"dynamic": ["dependencies"]}
    hook.update(metadata)
    assert metadata["dependencies"] == [f"{name} @ {(FOLDER / name).as_uri()}" for name in NAMES]


@pytest.mark.parametrize("name", ["lightning", "pytorch-lightning", "Pytorch_Lightning"])
def test_a_real_lightning_is_not_replaced(hook, name):
    installed(name, "2.5.1")
    with pytest.raises(SystemExit) as raised:
        hook.update({})
    text = str(raised.value)
    assert f"{name.lower().replace('_', '-')} 2.5.1" in text
    assert "lightlib compat run PROGRAM" in text
    assert f"pip uninstall {name.lower().replace('_', '-')}" in text


def test_its_own_distributions_may_be_installed_again(hook):
    installed("lightning", "2.6.6+lightlib")
    metadata: dict = {}
    hook.update(metadata)
    assert metadata == {}


@pytest.mark.processes
def test_its_packages_give_lightlib_without_a_variable():
    paths = [str(FOLDER / name) for name in NAMES]
    asked = (
        f"import sys; sys.path[:0] = {paths!r}; import lightning, pytorch_lightning, lightning_fabric, lightlib;"
        "print(lightning.pytorch is pytorch_lightning, lightning.fabric is lightning_fabric,"
        "pytorch_lightning.Trainer is lightlib.Trainer)"
    )
    done = programs.interpreter("-c", asked)
    assert done.stdout == "True True True\n", done.stderr
