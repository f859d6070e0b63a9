"""Print figures of the tree, each computed by a function."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("lightlib", "lightlib_lightning", "lightning", "lightning_fabric", "pytorch_lightning")
MODULES = ("Module", "LightningModule", "BoringModel", "DemoModel")


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


def line_of_small_modules() -> str:
    """Return a line about the small modules in all tests, and in files of tests that need not be Lightning's code."""
    modules = small_modules()
    ours = [module for module in modules if module.path.name.startswith("test_") and "compat" not in module.path.parts]
    texts = []
    for found in (modules, ours):
        num_files, num_lines = len({module.path for module in found}), sum(module.num_lines for module in found)
        texts.append(f"{len(found)} in {num_files} files, {num_lines:,} lines")
    return f"small modules in tests: {texts[0]} (in test_*.py outside of compat: {texts[1]})"


def tests_at_their_path() -> tuple[int, int]:
    """Return how many tests/a/test_b.py have a lightlib/a/b.py or a lightlib/a/b, and how many files of tests exist.

    For tests/compat the package is lightlib_lightning.
    """
    names = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    tested = []
    for name in names:
        folder = ROOT / "lightlib" / name.parent
        if name.parts[0] == "compat":
            folder = ROOT / "lightlib_lightning" / name.parent.relative_to("compat")
        tested.append(folder / name.stem.removeprefix("test_"))
    return sum(path.is_dir() or path.with_suffix(".py").is_file() for path in tested), len(names)


def main() -> int:
    """Print all figures."""
    at_their_path, num_files = tests_at_their_path()
    sys.stdout.write(f"{line_of_small_modules()}\n")
    sys.stdout.write(f"tests at the path of what they test: {at_their_path} of {num_files}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
