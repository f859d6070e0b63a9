"""lightlib.callbacks: every name is there, and imported only when it is used."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lightlib.callbacks
from lightlib import callbacks
from tests.processes import programs


@pytest.mark.parametrize("name", callbacks.__all__)
def test_every_name(name):
    assert getattr(callbacks, name).__name__ == name
    assert name in dir(callbacks)


def test_one_list():
    source = ast.parse(Path(lightlib.callbacks.__file__).read_text(encoding="utf-8"))
    typed = {alias.name for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed - {"annotations", "TYPE_CHECKING", "lazy"} == set(callbacks.__all__)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'ModelCheckpiont'"):
        _ = callbacks.ModelCheckpiont


@pytest.mark.processes
def test_nothing_is_imported_before_it_is_used():
    code = "import sys, lightlib.callbacks; print([n for n in sys.modules if n.startswith('lightlib.callbacks.')])"
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
