"""Lightning's public paths below `lightlib`, for programs that only replace their imports."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

from lightlib_lightning import missing
from lightlib_lightning.finder import ABSENT, CompatModule, is_package, served_or_absent
from lightlib_lightning.objects import names

__all__ = ["attribute", "find_spec", "lightning_path"]

_PUBLIC = "lightlib.compat"  # the name of this package in programs


def lightning_path(module: str) -> str | None:
    """Return the path below ``lightning`` of a module of lightlib; None if Lightning has none of that name.

    Example:
        >>> lightning_path("lightlib.utilities"), lightning_path("lightlib.fabric.loggers"), lightning_path("lightlib")
        ('pytorch.utilities', 'fabric.loggers', 'pytorch')
    """
    rest = module.partition(".")[2]
    path = rest if rest.partition(".")[0] in ("fabric", "pytorch") else f"pytorch.{rest}".rstrip(".")
    return path if path in names() else None


class _Loader(importlib.abc.Loader):
    """Makes the modules that have no file."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module of a name."""
        return CompatModule(lightning_path(spec.name) or "", spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up when they are used."""


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives this package and its modules by their public names: one object for both."""

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a public name, None for any other."""
        if fullname != _PUBLIC and not fullname.startswith(f"{_PUBLIC}."):
            return None
        if importlib.util.find_spec(fullname.replace(_PUBLIC, __package__, 1)) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module into the place of the new one; be asked first from now on, before files are looked for."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        sys.modules[module.__name__] = importlib.import_module(module.__name__.replace(_PUBLIC, __package__, 1))


_alias = _Alias()


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module that Lightning has and lightlib has no file for; None for any other."""
    if (spec := _alias.find_spec(name)) is not None:
        return spec
    path = lightning_path(name)
    return None if path is None else importlib.machinery.ModuleSpec(name, _Loader(), is_package=is_package(path))


def attribute(module: str, name: str) -> Any:
    """Return the object behind a name of Lightning's that a module of lightlib does not define.

    Raises:
        ImportError: Lightning's module of that name has none, either, and a statement imports it.
        AttributeError: The same, for any other use: programs ask whether there is one, so this costs little.
    """
    path = lightning_path(module)
    value = ABSENT if path is None else served_or_absent(path, module, name)
    if value is not ABSENT:
        return value
    if path is not None and missing.is_imported():
        raise missing.error(module, name, path, names()[path].split())
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
