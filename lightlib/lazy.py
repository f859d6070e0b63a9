"""Names of a package that are imported on first use, so that `import lightlib` stays light (PEP 562)."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

__all__ = ["attributes"]


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
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        file, _, original = files[name].partition(":")
        value = getattr(_import(f"{package}.{file}"), original or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        own = (name for name in vars(sys.modules[package]) if name.startswith("__") and name.endswith("__"))
        return sorted({*own, *files, *within})

    return get, names


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
