"""Optional packages: the table of requirements, and the error for a missing or broken one."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from lightlib import optional
from lightlib.errors import MisconfigurationException
from tests.architecture.rules import ROOT


def test_the_ranges_are_those_of_the_project():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values())
    declared = {Requirement(line).name: Requirement(line) for group in groups for line in group}
    for line in optional.REQUIREMENTS.values():
        wanted = Requirement(line)
        same = declared.get(wanted.name, wanted)  # its marker is about Pythons for which there are no files
        assert (wanted.specifier, wanted.extras) == (same.specifier, same.extras)
        assert (wanted.name in declared) == (">" in line), f"{line}: only a declared range has a reason"


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "comet_ml", None)
    assert not optional.is_installed("comet_ml.exceptions")
    with pytest.raises(MisconfigurationException) as caught:
        optional.load("comet_ml.exceptions", "CometLogger")
    assert str(caught.value) == (
        "CometLogger needs the package comet-ml, which is not installed.\n"
        "  Expected: comet-ml>=3.40 in this environment.\n"
        "  Fix: pip install 'comet-ml>=3.40'"
    )


def test_an_unlisted_package_that_lacks_a_part_of_itself(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import the_other_half")
    monkeypatch.syspath_prepend(tmp_path)
    assert optional.is_installed("half_there")
    with pytest.raises(MisconfigurationException) as caught:
        optional.load("half_there", "This", otherwise="do without it")
    assert str(caught.value) == (
        "This needs the package half-there, which cannot be imported: No module named 'the_other_half'\n"
        "  Expected: half-there in this environment.\n"
        "  Fix: pip install half-there, or do without it."
    )


def test_a_stand_in_without_a_specification_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "aim", ModuleType("aim"))
    assert optional.is_installed("aim")
    assert optional.load("aim", "AimLogger") is sys.modules["aim"]
