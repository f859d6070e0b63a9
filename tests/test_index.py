"""The index: its rows are the public names, and all lists of them derive from it."""

from __future__ import annotations

import importlib

import pytest

from lightlib import registry
from lightlib.index import INDEX, MODULE, Row
from tests.processes import programs

ROWS = [(package, row) for package, rows in INDEX.items() for row in rows]


@pytest.mark.parametrize(("package", "row"), ROWS, ids=[f"{package}.{row.name}" for package, row in ROWS])
def test_a_row(package, row):
    """Its name is public in its package, and is defined in its file."""
    module = importlib.import_module(package)
    found = getattr(module, row.name)
    assert row.name in dir(module)
    if row.file == MODULE:
        assert found is importlib.import_module(f"{package}.{row.name}")
        assert row.name not in module.__all__
    else:
        file, name = row.defined_as(package)
        assert found is vars(importlib.import_module(file))[name]
        assert row.name in module.__all__
        if isinstance(found, type):
            assert (found.__module__, found.__name__) == (file, name)


@pytest.mark.parametrize("package", INDEX)
def test_the_rows_of_a_package_are_sorted_and_differ(package):
    names = [(row.file == MODULE, row.name) for row in INDEX[package]]
    assert names == sorted(set(names))
    assert importlib.import_module(package).__all__ == [name for is_module, name in names if not is_module]


def test_the_registry_has_the_rows_with_a_group():
    for package, row in ROWS:
        if row.group:
            assert registry.BUILT_IN[row.group][row.key or row.name] == f"{package}:{row.name}"


@pytest.mark.processes
def test_a_package_imports_a_file_when_a_name_is_used():
    code = """
import sys
import lightlib
for package in ("accelerators", "callbacks", "loggers", "precision", "strategies"):
    getattr(lightlib, package)
    print([name for name in sys.modules if name.startswith(f"lightlib.{package}.")])
"""
    done = programs.interpreter("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n" * 5), done.stderr


def test_an_alias():
    assert Row("LightningModule", "core.module.module:Module").defined_as("lightlib") == (
        "lightlib.core.module.module",
        "Module",
    )
    assert Row("Module", "core.module.module").defined_as("lightlib") == ("lightlib.core.module.module", "Module")
