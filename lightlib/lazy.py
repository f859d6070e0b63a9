"""Names of a package that are imported on first use, so that `import lightlib` stays light (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["attributes"]


def attributes(package: str, files: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    Args:
        package: Its `__name__`.
        files: By public name: the file of the package that defines it, or ``"file:other_name"`` for an alias.

    Example:
        >>> get, names = attributes("lightlib.loggers", {"CSVLogger": "csv"})
        >>> get("CSVLogger").__name__, "CSVLogger" in names()
        ('CSVLogger', True)
    """

    def get(name: str) -> Any:
        if name not in files:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        file, _, original = files[name].partition(":")
        value = getattr(importlib.import_module(f"{package}.{file}"), original or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *files})

    return get, names
