"""Lightning's public paths below `lightlib`, for programs that only replace their imports."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
from types import ModuleType
from typing import Any

from lightlib.compat import missing
from lightlib.compat.finder import ABSENT, CompatModule, found, is_package
from lightlib.compat.objects import names

__all__ = ["attribute", "find_spec", "lightning_path"]


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


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module that Lightning has and lightlib has no file for; None for any other."""
    path = lightning_path(name)
    return None if path is None else importlib.machinery.ModuleSpec(name, _Loader(), is_package=is_package(path))


def attribute(module: str, name: str) -> Any:
    """Return the object behind a name of Lightning's that a module of lightlib does not define.

    Raises:
        ImportError: Lightning's module of that name has none, either, and a statement imports it.
        AttributeError: The same, for any other use: programs ask whether there is one, so this costs little.
    """
    path = lightning_path(module)
    value = ABSENT if path is None else found(path, module, name)
    if value is not ABSENT:
        return value
    if path is not None and missing.is_imported():
        raise missing.error(module, name, path, names()[path].split())
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
