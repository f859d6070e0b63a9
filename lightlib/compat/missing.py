"""Errors for names that a module of Lightning does not have here, with the names that it has."""

from __future__ import annotations

import dis
import sys

from lightlib.compat import objects
from lightlib.errors import closest

__all__ = ["error"]

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def error(module: str, name: str, path: str, public: list[str]) -> AttributeError | ImportError:
    """Return the error for a name that a module does not have.

    ``from module import name`` gets an ImportError, since Python would replace the text of an AttributeError.

    Args:
        module: The module's name.
        name: The missing name.
        path: The module's path below ``lightning``.
        public: The public names of the module.
    """
    private = objects.private_names(path)
    if name.startswith("_"):
        near = closest(name, private)
        there = f"one of {', '.join(private)}" if private else "a public name"
        what = f"{name!r} is internal to Lightning, and lightlib.compat does not provide it"
        fix = (
            "use the public API for it; if the import is in an installed package, run this program with Lightning: "
            "leave compat off (`lightlib compat check` lists such places)."
        )
    else:
        near = closest(name, public)
        there = "a name of Lightning 2.6"
        what = "neither Lightning 2.6 nor lightlib has it there"
        fix = f"import {near}." if near else "correct the name, or install the version of the project that fits 2.6."
    hint = f" Did you mean {near!r}?" if near else ""
    text = f"from {module!r} (served by lightlib.compat): {what}.{hint}\n  Expected: {there}.\n  Fix: {fix}"
    if _is_imported():
        return ImportError(f"cannot import name {name!r} {text}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r} {text}", name=name)


def _is_imported() -> bool:
    """Whether the module is read by a statement ``from … import name``."""
    frame = sys._getframe(1)  # noqa: SLF001  there is no public way to the code that reads the module
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "lightlib":
        frame = frame.f_back
    return frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM
