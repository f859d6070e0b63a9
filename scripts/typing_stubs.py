"""Writes lightlib-stubs: the types of Lightning's paths and names that lightlib serves.

python scripts/typing_stubs.py --check    fail if lightlib-stubs is not what would be written
python scripts/typing_stubs.py --write    write lightlib-stubs
"""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from lightlib.compat.finder import is_package
from lightlib.compat.internals.flags import FLAGS
from lightlib.compat.objects import names, private_names, provided

ROOT = Path(__file__).resolve().parents[1]
STUBS = ROOT / "lightlib-stubs"
HEADER = "# Written by scripts/typing_stubs.py --write."
Import = tuple[str, str]  # a module, and a name in it


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if lightlib-stubs is not what would be written")
    parser.add_argument("--write", action="store_true", help="write lightlib-stubs")
    options = parser.parse_args(arguments)
    if options.write:
        shutil.rmtree(STUBS, ignore_errors=True)
        for path, text in files().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    elif options.check and not is_current():
        print("lightlib-stubs is out of date: run `python scripts/typing_stubs.py --write`", file=sys.stderr)
        return 1
    return 0


def is_current() -> bool:
    """Whether the files of lightlib-stubs are those that would be written."""
    present = {path: path.read_text(encoding="utf-8") for path in STUBS.rglob("*") if path.is_file()}
    return present == files()


def files() -> dict[Path, str]:
    """Return the text of each file.

    Every module is a folder with an `__init__`: pyright warns of a module in a file without a source, and takes such a
    folder for a namespace package.
    """
    written = {STUBS / "py.typed": "partial\n"}
    for module, path in served():
        source = source_of(module)
        own = {} if source is None else exported(source)
        if own is not None:
            folder = STUBS.joinpath(*module.split(".")[1:])
            written[folder / "__init__.pyi"] = stub(module, path, own)
    return written


def served() -> Iterator[tuple[str, str]]:
    """Yield the modules of Lightning below `lightlib`: the name here, and the path below ``lightning``."""
    for path in names():
        first, _, rest = path.partition(".")
        if first == "pytorch":
            yield f"lightlib.{rest}".rstrip("."), path
            yield f"lightlib.{path}", path
        elif first == "fabric":
            yield f"lightlib.{path}", path


def source_of(module: str) -> Path | None:
    """Return the file of a module of lightlib's own."""
    place = ROOT.joinpath(*module.split("."))
    return next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None)


def exported(source: Path) -> dict[str, Import] | None:
    """Return the origins of the names that a file passes on; None if it defines names, which a stub would hide."""
    statements = ast.parse(source.read_text(encoding="utf-8")).body
    listed: set[str] = set()
    for one in statements:
        if isinstance(one, (ast.ClassDef, ast.FunctionDef)) and not one.name.startswith("_"):
            return None
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            if one.targets[0].id == "__all__":
                listed = set(ast.literal_eval(one.value))
            elif not one.targets[0].id.startswith("_"):
                return None
    typed = [one for block in statements if isinstance(block, ast.If) for one in block.body]
    return {
        alias.asname or alias.name: (str(one.module), alias.name)
        for one in [*statements, *typed]
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
        if alias.asname == alias.name or (alias.asname or alias.name) in listed
    }


def stub(module: str, path: str, own: dict[str, Import]) -> str:
    """Return the text of the stub of a module.

    Args:
        module: Its name.
        path: That of Lightning's module, below ``lightning``.
        own: The origins of the names in lightlib's own module of this name.
    """
    public = {*names()[path].split(), *private_names(path), *submodules(path)} - {*own}
    origins = {**own, **{name: origin(module, path, name) for name in public}}
    imported: dict[str, list[str]] = defaultdict(list)
    definitions = []
    for name, found in sorted(origins.items()):
        if isinstance(found, str):
            definitions.append(found)
        else:
            imported[found[0]].append(found[1] if found[1] == name else f"{found[1]} as {name}")
    if any(one.startswith("class ") for one in definitions):
        imported["lightlib.compat.absent"].append("Absent")
    imports = [f"from {place} import {', '.join(found)}" for place, found in sorted(imported.items())]
    return "\n".join([HEADER, *imports, f"__all__ = {sorted(origins)}", *definitions, ""])


def submodules(path: str) -> list[str]:
    """Return the names of the modules directly below a path."""
    if not is_package(path):
        return []
    return [one.rpartition(".")[2] for one in names() if one.rpartition(".")[0] == path]


def origin(module: str, path: str, name: str) -> Import | str:
    """Return the origin of a name of a module, or its definition if no module has it."""
    target = provided(path, name)
    if name in FLAGS:
        return f"{name}: bool"
    if target is not None:
        place, _, attribute = target.partition(":")
        return place, attribute
    return (module, name) if f"{path}.{name}" in names() else f"class {name}(Absent): ..."


if __name__ == "__main__":
    sys.exit(main())
