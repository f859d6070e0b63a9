"""Prints figures of the tree, with the limit of each; tests/architecture holds the limits.

python scripts/figures.py            print the table
python scripts/figures.py --check    fail if a figure is beyond its limit
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("lightlib", "lightlib_lightning")
LIBRARIES = ("lightlib", "lightlib_lightning", "lightning", "lightning_fabric", "pytorch_lightning")
MODULES = ("Module", "LightningModule", "BoringModel", "DemoModel")
# Names of variables in place of the noun of the value.
VAGUE = {"found", "given", "held", "known", "made", "mine", "one", "own", "seen", "theirs", "wanted", "what"}


class SmallModule(NamedTuple):
    """A class in a file of tests.

    Attributes:
        path: Its file, relative to the root.
        name: Its name, after the name of the file as Python imports it.
        bases: Such names of its base classes.
        num_lines: Its lines, blank ones and decorators included.
    """

    path: Path
    name: str
    bases: tuple[str, ...]
    num_lines: int


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the full name of each name that a file imports."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def classes_of(path: Path) -> Iterator[SmallModule]:
    """Yield the classes of a file, including those inside functions."""
    tree = ast.parse(path.read_text("utf-8"))
    imports, file = imported_names(tree), path.relative_to(ROOT)
    prefix = ".".join(file.with_suffix("").parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = []
            for first, dot, rest in (ast.unparse(base).partition(".") for base in node.bases):
                bases.append(imports.get(first, first if dot else f"{prefix}.{first}") + dot + rest)
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            num_lines = (node.end_lineno or begin) - begin + 1
            yield SmallModule(file, f"{prefix}.{node.name}", tuple(bases), num_lines)


def is_of_library(base: str) -> bool:
    """Return whether a name is that of a Module of lightlib or Lightning."""
    return base.partition(".")[0] in LIBRARIES and base.rpartition(".")[2] in MODULES


def small_modules() -> list[SmallModule]:
    """Return the classes in tests/ that derive from lightlib's or Lightning's Module, through each other too."""
    classes = [found for path in sorted((ROOT / "tests").rglob("*.py")) for found in classes_of(path)]
    modules: list[SmallModule] = []
    while True:
        names = {module.name for module in modules}
        found = [small for small in classes if any(base in names or is_of_library(base) for base in small.bases)]
        if len(found) == len(modules):
            return modules
        modules = found


def module_of_tests(name: Path) -> Path:
    """Return the module, without its extension, of a file of tests, if it has a module to itself: a/test_b.py has a/b.

    For tests/compat the package is lightlib_lightning.
    """
    folder = ROOT / "lightlib" / name.parent
    if name.parts[0] == "compat":
        folder = ROOT / "lightlib_lightning" / name.parent.relative_to("compat")
    return folder / name.stem.removeprefix("test_")


def tests_at_their_path() -> tuple[int, int]:
    """Return how many files of tests are at the path of their module, and how many files of tests exist.

    tests/a/test_b.py is at the path of lightlib/a/b.py and of the folder lightlib/a/b. Several files of one module are
    in a folder of its name: tests/a/b/test_subject.py is at the path of lightlib/a/b.py. tests/distributed is no such
    folder: the runs there are of many modules, and those of lightlib/distributed.py are in tests/test_distributed.py.
    """
    names = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    at_their_path = 0
    for name in names:
        module = module_of_tests(name)
        of_module = module.parent.with_suffix(".py").is_file() and name.parts[0] != "distributed"
        at_their_path += module.is_dir() or module.with_suffix(".py").is_file() or of_module
    return at_their_path, len(names)


def working_lines(path: Path) -> int:
    """Return how many lines of a file do something: no blank, docstring or comment."""
    text = path.read_text("utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = {line for token in tokens if token.type not in skipped for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def files_of(*tops: str) -> list[Path]:
    """Return the Python files below some folders."""
    return [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


def lines_of(*tops: str) -> int:
    """Return the lines of the Python files below some folders."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in files_of(*tops))


def questions(pattern: str) -> int:
    """Return how often a pattern stands in the files of the engine."""
    return sum(len(re.findall(pattern, path.read_text("utf-8"))) for path in (ROOT / "lightlib").rglob("*.py"))


def vague_names() -> int:
    """Return how often both packages assign to a variable, or declare a parameter, with a name of `VAGUE`."""
    count = 0
    for path in files_of(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Name):
                count += node.id in VAGUE and isinstance(node.ctx, ast.Store)
            elif isinstance(node, ast.arg):
                count += node.arg in VAGUE
    return count


def classes_above(place: str) -> int:
    """Return how many classes of the two packages are above a class: ``"module:Class"``."""
    module, _, name = place.partition(":")
    kind = getattr(importlib.import_module(module), name)
    return sum(base.__module__.partition(".")[0] in PACKAGES for base in kind.__mro__[1:])


def deepest_strategy() -> int:
    """Return the most classes above a strategy: Lightning's FSDPStrategy."""
    return classes_above("lightlib_lightning.plugins.strategies:FSDPStrategy")


def table() -> list[tuple[str, int, int]]:
    """Return the rows: the figure, its value, and the largest that it may have."""
    small = [one for one in small_modules() if one.path.name.startswith("test_") and "compat" not in one.path.parts]
    at_their_path, num_files = tests_at_their_path()
    return [
        ("lines of both packages", lines_of(*PACKAGES), 116_530),
        ("of these, lines that do something", sum(map(working_lines, files_of(*PACKAGES))), 76_755),
        ("of these, in lightlib_lightning", lines_of("lightlib_lightning"), 10_330),
        ("lines of tests", lines_of("tests"), 137_800),
        ("files that ask for the order of a run", questions(r"from lightlib\.conventions import .*\border\b"), 4),
        ("uses of the leniency of checks", questions(r"leniency\(\)"), 25),
        ("reads of the extension of a strategy", questions(r"\.extension\.\w"), 30),
        ("reads of calls that a strategy replaces in Fabric", questions(r"_strategy_calls\.\w"), 21),
        ("classes above Trainer", classes_above("lightlib:Trainer"), 0),
        ("classes above Fabric", classes_above("lightlib:Fabric"), 0),
        ("classes above the deepest strategy", deepest_strategy(), 5),
        ("variables and parameters with a vague name", vague_names(), 195),
        ("lines of docs/architecture.md", len((ROOT / "docs/architecture.md").read_text("utf-8").splitlines()), 250),
        ("small modules in tests outside of compat", len(small), 259),
        ("their lines", sum(one.num_lines for one in small), 2_795),
        ("files of tests that are not at the path of what they test", num_files - at_their_path, 125),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a figure is beyond its limit")
    options = parser.parse_args(arguments)
    beyond = 0
    for name, value, limit in table():
        over = value > limit
        beyond += over
        sys.stdout.write(f"{name:60} {value:>8,}   at most {limit:>8,}{'   BEYOND' if over else ''}\n")
    return int(bool(beyond) and options.check)


if __name__ == "__main__":
    sys.exit(main())
