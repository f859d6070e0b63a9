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
    """A class of a file, with its lines.

    Attributes:
        path: Its file, relative to the root.
        name: Its name.
        bases: Full names of its base classes, as the imports of the file resolve them.
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
    imports = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            parts = [ast.unparse(base).partition(".") for base in node.bases]
            bases = tuple(imports.get(first, first) + dot + rest for first, dot, rest in parts)
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            num_lines = (node.end_lineno or begin) - begin + 1
            yield SmallModule(path.relative_to(ROOT), node.name, bases, num_lines)


def small_modules() -> list[SmallModule]:
    """Return the classes in tests/ that derive from lightlib's or Lightning's Module, through each other too."""
    classes = [found for path in sorted((ROOT / "tests").rglob("*.py")) for found in classes_of(path)]
    modules: list[SmallModule] = []
    while True:
        local = {(module.path, module.name) for module in modules}
        imported = {".".join((*path.with_suffix("").parts, name)) for path, name in local}

        def is_module(path: Path, base: str) -> bool:
            of_library = base.split(".")[0] in LIBRARIES and base.split(".")[-1] in MODULES
            return of_library or (path, base) in local or base in imported

        found = [small for small in classes if any(is_module(small.path, base) for base in small.bases)]
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


def main() -> int:
    """Print all figures."""
    sys.stdout.write(line_of_small_modules() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
