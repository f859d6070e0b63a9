"""Writes the files for type checkers: public names by the index, and Lightning's paths.

python scripts/typing_stubs.py --check    fail if a file is not what would be written
python scripts/typing_stubs.py --write    write lightlib/**/__init__.pyi and lightlib-stubs
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import lightlib_lightning
from lightlib.index import INDEX, MODULE
from lightlib_lightning.finder import is_package
from lightlib_lightning.objects import PRIVATE, names, private_names, provided

ROOT = Path(__file__).resolve().parents[1]
STUBS = ROOT / "lightlib-stubs"
PACKAGE = ROOT / "lightlib"
HEADER = "# Written by scripts/typing_stubs.py --write."
Import = tuple[str, str]  # a module, and a name in it


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a file is not what would be written")
    parser.add_argument("--write", action="store_true", help="write the files")
    options = parser.parse_args(arguments)
    if options.write:
        for path in present():
            path.unlink()
        for path, text in files().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    elif options.check and not is_current():
        print("the files of types are out of date: run `python scripts/typing_stubs.py --write`", file=sys.stderr)
        return 1
    return 0


def is_current() -> bool:
    """Whether the files are those that would be written."""
    return {path: path.read_text(encoding="utf-8") for path in present()} == files()


def present() -> list[Path]:
    """Return the files that there are."""
    return [path for folder in (STUBS, PACKAGE) for path in folder.rglob("*") if path.is_file() and is_written(path)]


def is_written(path: Path) -> bool:
    """Whether this program writes a file."""
    return path.is_relative_to(STUBS) or path.suffix == ".pyi"


def files() -> dict[Path, str]:
    """Return the text of each file.

    Every module of lightlib-stubs is a folder with an `__init__`: pyright warns of a module in a file without a source,
    and takes such a folder for a namespace package.
    """
    written = {STUBS / "py.typed": "partial\n"}
    for package in INDEX:
        public = [row.name for row in INDEX[package] if row.file != MODULE]
        for top in (PACKAGE, STUBS):  # with a stub package, pyright reads no .pyi file of the package itself
            written[top.joinpath(*package.split(".")[1:], "__init__.pyi")] = text_of(indexed(package), public)
    public = lightlib_lightning.__all__
    written[STUBS / "compat" / "__init__.pyi"] = text_of({name: ("lightlib_lightning", name) for name in public})
    for module, path in served():
        source = source_of(module)
        own = indexed(module) if module in INDEX else {} if source is None else exported(source)
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
    return text_of({**own, **{name: origin(module, path, name) for name in public}})


def indexed(package: str) -> dict[str, Import]:
    """Return the origins of the public names of a package."""
    found = {}
    for row in INDEX[package]:
        module, name = row.defined_as(package)
        found[row.name] = (module.rstrip("."), name)
    return found


def text_of(origins: Mapping[str, Import | str], public: Sequence[str] = ()) -> str:
    """Return the text of a file.

    Args:
        origins: By name, or definitions of names that no module has.
        public: The names in `__all__`. Default: all.
    """
    listed = sorted(public or origins)
    imported: dict[str, list[str]] = defaultdict(list)
    definitions = []
    for name, found in sorted(origins.items()):
        if isinstance(found, str):
            definitions.append(found)
        else:
            plain = found[1] == name and name in listed
            imported[found[0]].append(name if plain else f"{found[1]} as {name}")
    if any(one.startswith("class ") for one in definitions):
        imported["lightlib_lightning.absent"].append("Absent")
    imports = [f"from {place} import {', '.join(found)}" for place, found in sorted(imported.items())]
    return "\n".join([HEADER, *imports, f"__all__ = {listed}", *definitions, ""])


def submodules(path: str) -> list[str]:
    """Return the names of the modules directly below a path."""
    if not is_package(path):
        return []
    return [one.rpartition(".")[2] for one in names() if one.rpartition(".")[0] == path]


def origin(module: str, path: str, name: str) -> Import | str:
    """Return the origin of a name of a module, or its definition if no module has it."""
    target = provided(path, name)
    if PRIVATE.get(name, "").startswith("lightlib_lightning.internals.flags:"):
        return f"{name}: bool"
    if target is not None:
        place, _, attribute = target.partition(":")
        return place, attribute
    return (module, name) if f"{path}.{name}" in names() else f"class {name}(Absent): ..."


if __name__ == "__main__":
    sys.exit(main())
