"""Names and paths that are imported on first use, so that `import lightlib` stays light."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["LightningPaths", "attributes", "lightning_names"]

_DIRECT = "lightlib.compat.direct"  # imported when a name or module is missing: it may import everything


def attributes(
    package: str, files: Mapping[str, str], packages: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. The latter lists these names only.

    Args:
        package: Its `__name__`.
        files: By public name: the file of the package that defines it, or ``"file:other_name"`` for an alias.
        packages: Files and packages within it that are public names themselves.
    """
    within = frozenset(packages)

    def get(name: str) -> Any:
        if name in within:
            return _import(f"{package}.{name}")
        if name not in files:
            return _of_lightning(package, name)
        file, _, original = files[name].partition(":")
        value = getattr(_import(f"{package}.{file}"), original or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        own = (name for name in vars(sys.modules[package]) if name.startswith("__") and name.endswith("__"))
        return sorted({*own, *files, *within})

    return get, names


def lightning_names(module: str) -> Callable[[str], Any]:
    """Return `__getattr__` for a module in which Lightning has names that ours defines in other places.

    Args:
        module: Its `__name__`.
    """
    return partial(_of_lightning, module)


def _of_lightning(module: str, name: str) -> Any:
    if name.startswith("_") or module.partition(".")[0] != "lightlib":
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    try:
        value = _import(_DIRECT).attribute(module, name)
    except AttributeError:
        raise AttributeError(f"module {module!r} has no attribute {name!r}") from None
    setattr(sys.modules[module], name, value)
    return value


class LightningPaths:
    """Import finder, the last one: gives Lightning's modules below `lightlib` for which there is no file."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of such a module, None for any other."""
        if not name.startswith("lightlib."):
            return None
        spec: ModuleSpec | None = importlib.import_module(_DIRECT).find_spec(name)
        return spec


def _import(module: str) -> ModuleType:
    """Import with Python's garbage collector paused.

    An import creates thousands of objects that stay and no garbage, but their number triggers a full collection, which
    visits all of torch's objects and takes longer than importing lightlib.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
