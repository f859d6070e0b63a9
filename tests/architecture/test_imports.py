"""Tests that the package follows its rules on imports, sizes, names and docstrings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from scripts.architecture_tree import is_current
from tests.architecture.bases import EXCEPTIONS, bases_of_one
from tests.architecture.rules import (
    ORDER,
    ROOT,
    File,
    crowded,
    cycles,
    package_files,
    unexplained_imports,
    wrong_order,
    wrong_purpose,
    wrong_size,
)


@functools.cache
def files_of_lightlib() -> list[File]:
    return package_files()


def expect_none(problems: Iterable[str]) -> None:
    broken = list(problems)
    assert not broken, "the rules in CONTRIBUTING.md, section House rules, are broken:\n" + "\n".join(broken)


@pytest.mark.parametrize("rule", [wrong_order, unexplained_imports, wrong_size, wrong_purpose])
def test_every_file_keeps_the_rule(rule: Callable[[File], Iterator[str]]) -> None:
    expect_none(problem for file in files_of_lightlib() for problem in rule(file))


def test_no_import_cycles() -> None:
    expect_none(cycles(files_of_lightlib()))


def test_a_base_has_two_subclasses() -> None:
    lone = bases_of_one(files_of_lightlib())
    expect_none(problem for name, problem in lone.items() if name not in EXCEPTIONS)
    stale = sorted(EXCEPTIONS.keys() - lone.keys())
    assert not stale, f"remove {', '.join(stale)} from EXCEPTIONS of tests/architecture/bases.py: it is no such base"


def test_no_folder_is_crowded() -> None:
    expect_none(crowded(files_of_lightlib()))


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "scripts", "tests"])
def test_files_outside_the_package_state_their_purpose(folder: str) -> None:
    files = [File(path, ROOT) for path in sorted((ROOT / folder).rglob("*.py"))]
    expect_none(problem for file in files for problem in wrong_purpose(file))


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {file.path.parent for file in files_of_lightlib()}
    missing = sorted(folder / "__init__.py" for folder in folders if not (folder / "__init__.py").exists())
    assert not missing, f"write {', '.join(map(str, missing))}, with a docstring that states the purpose of the folder"


def test_the_tree_in_the_documentation_is_the_tree() -> None:
    assert is_current(), "docs/tree.md is out of date: run `python scripts/architecture_tree.py --write`"


def test_the_order_in_the_documentation_is_the_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert "\n".join(ORDER) in page, "the order in docs/architecture.md is not ORDER of rules.py: copy it there"


# The rules themselves, each with one file that breaks it.


def house(root: Path, files: Mapping[str, str]) -> list[File]:
    """Write a small package from texts by file: "core/progress/plan" is lightlib/core/progress/plan.py."""
    for name, text in files.items():
        path = root / "lightlib" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""A file."""\n{text}\n', encoding="utf-8")
    return package_files(root)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"errors": "", "core/progress/plan": "from lightlib import Trainer"}, "imports the package root"),
        (
            {"core/progress/plan": "", "checkpoint/label": "from ..core.progress.plan import Plan"},
            "label.py:2: imports lightlib.core.progress.plan against the order",
        ),
        ({"report": "import lightlib.registry"}, "report may import what comes before it in ORDER"),
        ({"profilers/simple": "import lightlib.loggers.csv"}, "and loggers does not."),  # on two sides of a `|`
        ({"loggers/csv": "from lightlib.core.run.run import Run"}, "imports lightlib.core.run.run against the order"),
        ({"novelty/file": ""}, "`novelty` has no place in the order; give it one in ORDER"),
        ({"novelty": ""}, "`novelty` has no place in the order; give it one in ORDER"),
    ],
)
def test_an_import_against_the_order_is_found(tmp_path: Path, files: dict[str, str], message: str) -> None:
    assert message in "\n".join(problem for file in house(tmp_path, files) for problem in wrong_order(file))


def test_a_folder_may_export_names_of_its_folders(tmp_path: Path) -> None:
    files = house(tmp_path, {"loggers/__init__": "from lightlib.loggers.csv import CSVLogger", "loggers/csv": ""})
    assert [problem for file in files for problem in wrong_order(file)] == []


def test_trainer_and_module_may_be_imported_for_typing(tmp_path: Path) -> None:
    names = "trainer import Trainer", "session import Session"
    text = "if TYPE_CHECKING:\n" + "\n".join(f"    from lightlib.core.{name}" for name in names)
    (file,) = house(tmp_path, {"loggers/csv": text})
    assert [problem.split(" against")[0] for problem in wrong_order(file)] == [
        "lightlib/loggers/csv.py:4: imports lightlib.core.session"
    ]


def test_a_cycle_is_found_once(tmp_path: Path) -> None:
    files = house(
        tmp_path,
        {
            "loggers/logger": "if TYPE_CHECKING:\n    from lightlib.loggers.csv import CSVLogger",
            "loggers/csv": "from lightlib.loggers.logger import Logger",
        },
    )
    assert [problem.split(":")[0] for problem in cycles(files)] == [
        "lightlib.loggers.csv → lightlib.loggers.logger → lightlib.loggers.csv"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f():\n    import rich", "imports rich inside a function"),
        ("def f():\n    import rich  # optional: rich", ""),
        ("import rich", "imports rich at the top"),
        ("import torch.distributed.checkpoint as dcp", "imports torch.distributed.checkpoint at the top"),
        ("if TYPE_CHECKING:\n    import rich", ""),
        ("import torch, os", ""),
    ],
)
def test_an_unexplained_import_is_found(tmp_path: Path, text: str, message: str) -> None:
    problems = [problem for file in house(tmp_path, {"report": text}) for problem in unexplained_imports(file)]
    assert (message in problems[0]) if message else problems == []


def test_files_and_functions_that_are_too_long_are_found(tmp_path: Path) -> None:
    long_function = 'def f(a,\n      b):\n    """A line.\n\n    More lines.\n    """\n' + "    a\n" * 61
    (file,) = house(tmp_path, {"report": long_function})
    assert [problem.split(",")[0] for problem in wrong_size(file)] == [
        "lightlib/report.py:2: f has 61 lines without its docstring"
    ]
    (file,) = house(tmp_path, {"report": "a = 1\n" * 600})
    assert "601 lines, at most 600" in next(wrong_size(file)) or "602 lines, at most 600" in next(wrong_size(file))
    loop = next(file for file in house(tmp_path, {"core/run/loop": "a = 1\n" * 300}) if file.name.endswith("loop.py"))
    assert "lines, at most 300" in next(wrong_size(loop))


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    files = house(tmp_path, {f"loggers/of_{i}": "" for i in range(20)})
    assert list(crowded(files)) == ["lightlib/loggers/: 20 files, at most 19; move one subject to a folder of its own."]
    assert not list(crowded(files[1:]))


def test_a_file_without_a_purpose_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "lightlib"
    folder.mkdir()
    (folder / "errors.py").write_text("import os\n")
    (folder / "report.py").write_text(f'"""{"x" * 101}"""\n')
    (folder / "utils.py").write_text('"""Things."""\n')
    text = "\n".join(problem for file in package_files(tmp_path) for problem in wrong_purpose(file))
    assert "errors.py: begins without a docstring" in text
    assert "report.py: the first docstring line has 101 characters, at most 100" in text
    assert "utils.py: the name is too general" in text


def test_the_rule_on_bases(tmp_path: Path) -> None:
    files = house(
        tmp_path,
        {
            "data/parts": "class Part:\n    pass\n\n\nclass Shared:\n    pass\n\n\nclass Oops(Exception):\n    pass",
            "data/made": (
                "from typing import Protocol\n\nfrom lightlib.data.parts import Oops, Part, Shared\n\n\n"
                "class Made(Part, Shared):\n    pass\n\n\nclass Other(Shared):\n    pass\n\n\n"
                "class Worse(Oops):\n    pass\n\n\nclass Stored(Protocol):\n    pass\n\n\nclass Kept(Stored):\n    pass"
            ),
        },
    )
    assert bases_of_one(files) == {
        "lightlib.data.parts.Part": "lightlib/data/parts.py:2: Part is the base of lightlib.data.made.Made alone; make "
        "them one class, or let one hold the other."
    }
