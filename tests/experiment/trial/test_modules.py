"""Modules of the same name in two contexts are kept apart; installed ones stay."""

from __future__ import annotations

import importlib
import sys

import pytest
import yaml

import lightlib
from lightlib.experiment.trial.classes import imported, parameters
from lightlib.experiment.trial.modules import first_on_path

MODEL = """
import lightlib.errors
from shared_net import WIDTH

print("runs")


class Net:
    def __init__(self, {}):
        pass
"""


@pytest.fixture
def contexts(tmp_path, monkeypatch):
    """Two folders with modules of the same names."""
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "shared_net").mkdir(parents=True)
        (folder / "apart_model.py").write_text(MODEL.format(name))
        (folder / "shared_net" / "__init__.py").write_text("from shared_net.width import WIDTH\n")
        (folder / "shared_net" / "width.py").write_text(f"WIDTH = {name!r}\n")
    yield tmp_path / "one", tmp_path / "two"
    for name in [name for name in sys.modules if name.partition(".")[0] in ("apart_model", "shared_net")]:
        del sys.modules[name]


def test_each_context_has_its_own_module(contexts, capsys):
    one, two = contexts
    for _ in range(2):
        assert parameters("apart_model.Net", one).names == {"one"}
        assert parameters("apart_model.Net", two).names == {"two"}
        assert sys.modules["apart_model"].__file__ == str(one / "apart_model.py")  # what this process had
        assert sys.modules["shared_net.width"].WIDTH == "one"
        assert imported("shared_net.WIDTH", two) == "two"
    assert capsys.readouterr().out == "runs\n" * 2, "each file once"


def test_a_copy_of_the_same_file_is_not_imported_again(contexts, capsys):
    one, two = contexts
    imported("apart_model.Net", one)
    for name in ("apart_model.py", "shared_net/width.py"):
        (two / name).write_bytes((one / name).read_bytes())
    assert imported("apart_model.Net", two) is imported("apart_model.Net", one)
    assert capsys.readouterr().out == "runs\n"


def test_installed_modules_and_lightlib_stay(tmp_path):
    for name in ("yaml", "lightlib", "json"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('another one')")
    with first_on_path(tmp_path):
        assert importlib.import_module("yaml") is yaml
        assert importlib.import_module("lightlib") is lightlib
