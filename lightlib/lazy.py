"""Names and paths that are imported on first use, so that `import lightlib` stays light."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from opcode import opmap
from types import FrameType, ModuleType
from typing import Any

from lightlib.index import INDEX, MODULE

__all__ = ["IMPORT_FROM", "TranslatedPaths", "exports", "translated_names"]

IMPORT_FROM = opmap["IMPORT_FROM"]  # the statement `from package import name`, whose errors have suggestions
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"  # `from package import name` asks for a module before it imports it
_TRANSLATIONS = "lightlib.translations"  # imported when a name or module is missing: it may import everything


def exports(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, by the index. The last lists public names only.

    Args:
        package: Its `__name__`.
    """
    rows = {row.name: row for row in INDEX[package]}
    absent: set[str] = set()

    def get(name: str) -> Any:
        row = rows.get(name)
        if row is None:
            asking = sys._getframe(1)  # noqa: SLF001  there is no public way to the code that reads the module
            if name in absent and asking.f_code.co_code[asking.f_lasti] != IMPORT_FROM:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            _refuse_before_import(package, name, asking)
            absent.add(name)  # jsonargparse asks for the same names hundreds of times
            return _of_another(package, name)
        if row.file == MODULE:
            return _import(f"{package}.{name}")
        module, original = row.defined_as(package)
        value = getattr(_import(module), original)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        dunders = (name for name in vars(sys.modules[package]) if name.startswith("__") and name.endswith("__"))
        return sorted({*dunders, *rows})

    return [name for name, row in rows.items() if row.file != MODULE], get, names


def translated_names(module: str) -> Callable[[str], Any]:
    """Return `__getattr__` for a module in which another framework has names that ours defines in other places.

    Args:
        module: Its `__name__`.
    """

    def get(name: str) -> Any:
        if not name.startswith("_"):
            _refuse_before_import(module, name, sys._getframe(1))  # noqa: SLF001  as in `exports`
        return _of_another(module, name)

    return get


def _refuse_before_import(package: str, name: str, asking: FrameType) -> None:
    """Raise if Python asks whether a package has a name because it is about to import the file of that name."""
    path = getattr(sys.modules[package], "__path__", ()) if asking.f_code.co_filename == _IMPORT_SYSTEM else ()
    if path and PathFinder.find_spec(f"{package}.{name}", path) is not None:
        raise AttributeError(f"module {package!r} has not imported {name!r} yet")


def _of_another(module: str, name: str) -> Any:
    if name.startswith("_") or module.partition(".")[0] != "lightlib":
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    try:
        value = _import(_TRANSLATIONS).attribute(module, name)
    except AttributeError:
        raise AttributeError(f"module {module!r} has no attribute {name!r}") from None
    setattr(sys.modules[module], name, value)
    return value


class TranslatedPaths:
    """Import finder, the last one: gives another framework's modules below `lightlib` for which there is no file."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of such a module, None for any other."""
        if not name.startswith("lightlib."):
            return None
        spec: ModuleSpec | None = importlib.import_module(_TRANSLATIONS).find_spec(name)
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
