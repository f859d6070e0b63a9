"""Modules of a context: found first, and kept apart from modules with the same names in other folders."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from lightlib.errors import PACKAGES

_NEVER = (*PACKAGES, "torch")  # a second copy of them would be another framework
_apart: dict[Path, dict[str, ModuleType]] = {}  # by context, where a name belongs to another one


@contextmanager
def first_on_path(context: Path) -> Iterator[None]:
    """Search a folder for modules first.

    A module that this process has from another folder of a user is replaced meanwhile if its file differs: two projects
    may have a ``model.py`` each. Installed packages are not replaced, because trials see them, too.

    Args:
        context: The folder.
    """
    folder = context.resolve()
    sys.path.insert(0, str(folder))
    names = _differing(folder)
    before = _taken(names)
    sys.modules.update(_apart.get(folder, {}))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if names:
            _apart[folder] = _apart.get(folder, {}) | _taken(names)
            sys.modules.update(before)


def _differing(folder: Path) -> set[str]:
    """Return the names of the loaded top-level modules of which a folder has another file."""
    names = set()
    for path in folder.iterdir():
        name = path.stem if path.suffix == ".py" else path.name
        if name in sys.modules and name not in _NEVER and any(_differs(below, folder) for below in _below(name)):
            names.add(name)
    return names


def _below(name: str) -> list[str]:
    return [module for module in list(sys.modules) if module == name or module.startswith(f"{name}.")]


def _differs(name: str, folder: Path) -> bool:
    loaded = getattr(sys.modules[name], "__file__", None)
    place = folder.joinpath(*name.split("."))
    here = next(
        (candidate for candidate in (place.with_suffix(".py"), place / "__init__.py") if candidate.is_file()), None
    )
    if loaded is None or here is None:
        return False
    file = Path(loaded).resolve()
    installed = any(file.is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib"))
    return not installed and file != here.resolve() and not (file.is_file() and file.read_bytes() == here.read_bytes())


def _taken(names: set[str]) -> dict[str, ModuleType]:
    """Remove modules and those below them from the loaded ones, and return them."""
    return {module: sys.modules.pop(module) for name in names for module in _below(name)}
