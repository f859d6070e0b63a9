"""The package knows other frameworks by entry points, and by two objects of a run."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator

import pytest

from lightlib import registry
from lightlib.translations import Translation
from tests.architecture.rules import ADDED, PACKAGE, ROOT, package_files

# Files that begin a run, or work without one: they ask for the order of the process.
ASK_FOR_THE_ORDER = {
    "lightlib/callbacks/summary/model_summary.py", "lightlib/core/session.py", "lightlib/core/session_state.py",
    "lightlib/fabric/placed_objects.py",
}  # fmt: skip
# Files that name the other package of the distribution: code of both is no user's, and the registry has its modules.
NAME_THE_OTHER = {"lightlib/errors.py", "lightlib/registry.py"}
# Files of checkpoints that Lightning writes, which are read as data.
READ_ITS_FILES = ("lightlib/checkpoint/", "lightlib/core/resume/restore.py")
OURS = [file for file in package_files() if file.module.partition(".")[0] == PACKAGE]


def trees() -> Iterator[tuple[str, ast.Module]]:
    for file in OURS:
        yield file.name, ast.parse(file.text)


def test_no_file_imports_or_names_the_other_package() -> None:
    assert [file.name for file in OURS if any(one.target.startswith(ADDED) for one in file.imports)] == []
    assert {file.name for file in OURS if ADDED in file.text} == NAME_THE_OTHER


def test_the_order_is_asked_for_where_a_run_begins() -> None:
    asking = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "lightlib.conventions"
        if {"order", "chosen"} & {one.name for one in node.names}
    }
    assert asking == ASK_FOR_THE_ORDER


def named(test: ast.expr) -> set[str]:
    """Return the names in a condition that have the word Lightning in them."""
    nodes = [node for node in ast.walk(test) if isinstance(node, (ast.Name, ast.Attribute))]
    names = {node.id if isinstance(node, ast.Name) else node.attr for node in nodes}
    return {name for name in names if "lightning" in name.lower() and name not in ("LightningCLI", "lightning_class")}


def test_no_condition_asks_about_lightning() -> None:
    found = {
        (name, word)
        for name, tree in trees()
        if not name.startswith(READ_ITS_FILES)
        for node in ast.walk(tree)
        if isinstance(node, (ast.If, ast.IfExp, ast.While))
        for word in named(node.test)
    }
    assert found == set()


@pytest.mark.parametrize("place", registry.modules("translations").values())
def test_a_translation_has_what_the_package_asks_for(place: str) -> None:
    module = importlib.import_module(place)
    wanted = {name: call for name, call in vars(Translation).items() if inspect.isfunction(call) and name[0] != "_"}
    assert set(wanted) == set(module.__all__)
    for name, call in wanted.items():
        parameters = list(inspect.signature(call).parameters)[1:]
        assert list(inspect.signature(getattr(module, name)).parameters) == parameters


def test_both_packages_are_in_the_wheel() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'packages = ["{PACKAGE}", "{ADDED}", "lightlib-stubs"]' in text
