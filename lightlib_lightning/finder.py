"""Serves Lightning's module tree: a finder that gives lightlib's objects by Lightning's names."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from lightlib_lightning import absent, missing, objects
from lightlib_lightning.objects import names

__all__ = [
    "ABSENT",
    "ROOTS",
    "CompatModule",
    "Finder",
    "canonical",
    "is_package",
    "names",
    "served",
    "served_or_absent",
]

# Packages by which Lightning's modules are imported; a module below any of them is the one below `lightning`.
ROOTS = {"lightning": "", "pytorch_lightning": "pytorch", "lightning_fabric": "fabric"}
VERSION = "2.6.6"
ABSENT = object()  # in place of the object of a name that no module has
_LOG = "lightlib_lightning.loggers:log"  # each module of Lightning has one by its own name


def canonical(name: str) -> str:
    """Return a module's path below ``lightning``, whichever root it is named by.

    Example:
        >>> canonical("pytorch_lightning.callbacks"), canonical("lightning.pytorch.callbacks"), canonical("lightning")
        ('pytorch.callbacks', 'pytorch.callbacks', '')
    """
    root, _, rest = name.partition(".")
    return ".".join(part for part in (ROOTS[root], rest) if part)


class CompatModule(ModuleType):
    """A module of Lightning's tree; its names are looked up when they are used for the first time.

    Args:
        path: Below ``lightning``.
        name: By which it is imported; default: its canonical name in Lightning.
    """

    def __init__(self, path: str, name: str | None = None) -> None:
        super().__init__(
            name or f"lightning.{path}".rstrip("."), f"Lightning's {path or 'top'} module, served by lightlib."
        )
        self._path = path
        self.__all__ = names()[path].split()
        self.__version__ = VERSION
        if is_package(path):
            self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        """Import the object behind a name; keep it, so that the next use costs nothing."""
        value = served(self._path, self.__name__, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        """Return the names that can be used."""
        return sorted({*super().__dir__(), *self.__all__})


def is_package(path: str) -> bool:
    """Whether Lightning has modules below a path."""
    return any(other.startswith(f"{path}.".lstrip(".")) for other in names())


def served(path: str, module: str, name: str) -> Any:
    """Return the object behind a name of Lightning's module at `path`, which is imported as `module`.

    Raises:
        AttributeError: Lightning's module has no such name.
    """
    value = served_or_absent(path, module, name)
    if value is ABSENT:
        raise missing.error(module, name, path, names()[path].split())
    return value


def served_or_absent(path: str, module: str, name: str) -> Any:
    """Return the same, `ABSENT` if Lightning's module has no such name."""
    target = objects.provided(path, name)
    if target is not None:
        place, _, attribute = target.partition(":")
        origin = importlib.import_module(_in_tree_of(module, place))
        if target == _LOG:
            return logging.getLogger(f"lightning.{path}")
        return getattr(origin, attribute) if attribute else origin
    if f"{path}.{name}".lstrip(".") in names():
        return importlib.import_module(f"{module}.{name}")
    if name in names()[path].split():
        return absent.stand_in(name)
    return ABSENT


def _in_tree_of(module: str, place: str) -> str:
    """Return the path of a module of Lightning's as `module` is imported, with compat or below `lightlib`."""
    if place.partition(".")[0] not in ROOTS or module.partition(".")[0] in ROOTS:
        return place
    return place.replace("lightning", "lightlib", 1).replace(".pytorch", "", 1)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds Lightning's modules, by any of the roots, and makes one object for each."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a module that Lightning 2.6 has; None for any other."""
        if fullname.partition(".")[0] not in ROOTS or canonical(fullname) not in names():
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package(canonical(fullname)))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the one module of this path, made on its first import."""
        path = canonical(spec.name)
        name = f"lightning.{path}".rstrip(".")
        return sys.modules.get(name) or CompatModule(path)

    def exec_module(self, module: ModuleType) -> None:
        """Enter the module under its other names."""
        path = canonical(module.__name__)
        for root, below in ROOTS.items():
            if path == below or path.startswith(f"{below}.".lstrip(".")):
                rest = path.removeprefix(below).strip(".")
                sys.modules.setdefault(f"{root}.{rest}".rstrip("."), module)
