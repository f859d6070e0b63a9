"""Errors for names that a module of Lightning does not have here, with the names that it has."""

from __future__ import annotations

import importlib
import sys

from lightlib.errors import closest, is_ours
from lightlib.lazy import IMPORT_FROM
from lightlib_lightning import objects
from lightlib_lightning.tools.lacking import OF_A_PACKAGE

__all__ = ["error", "is_imported", "place_of"]

_OURS = ("lightlib", *(f"lightlib.{folder}" for folder in (
    "accelerators", "callbacks", "data", "evaluation", "fabric", "loggers", "optim", "precision", "profilers",
    "samplers", "schedulers", "strategies", "tuner",
)))  # fmt: skip


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
        problem = f"{name!r} is a private name, which lightlib.compat does not provide"
        fix = f"use the public API for it; {OF_A_PACKAGE}"
    elif place := place_of(module, name, import_ours=is_imported() or not _is_ours(module)):
        near, there = "", "the module that has the name"
        problem = f"{'lightlib' if _is_ours(place) else 'Lightning 2.6'} has it in {place!r}"
        fix = f"from {place} import {name}"
    else:
        near = closest(name, public)
        there = "a name of Lightning 2.6"
        problem = f"neither Lightning 2.6 nor {module if _is_ours(module) else 'lightlib'} has it"
        right = f"import {near}" if near else "correct the name"
        fix = f"{right}; or install the version of the project that fits Lightning 2.6."
    hint = f" Did you mean {near!r}?" if near else ""
    text = f"from {module!r} (served by lightlib.compat): {problem}.{hint}\n  Expected: {there}.\n  Fix: {fix}"
    if is_imported():
        return ImportError(f"cannot import name {name!r} {text}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r} {text}", name=name)


def place_of(module: str, name: str, import_ours: bool = True) -> str:
    """Return the module that has a name: one of Lightning 2.6, else one of lightlib's; empty if none has it.

    Args:
        module: In which it was looked for; below `lightlib`, the module is one below `lightlib`, too.
        name: The name.
        import_ours: Whether to import lightlib's packages for that, and torch with them.
    """
    having = [path for path, names in objects.names().items() if name in names.split()]
    if having:
        near = min(
            having,
            key=lambda candidate: (
                candidate.startswith("fabric") != (".fabric" in module),
                candidate.count("."),
                not candidate,
            ),
        )
        place = f"lightning.{near}".rstrip(".")
        return place.replace("lightning", "lightlib", 1).replace(".pytorch", "", 1) if _is_ours(module) else place
    ours = _OURS if import_ours else ()
    return next((place for place in ours if name in getattr(importlib.import_module(place), "__all__", ())), "")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "lightlib"


def is_imported() -> bool:
    """Whether the module is read by a statement ``from … import name``."""
    frame = sys._getframe(1)  # noqa: SLF001  there is no public way to the code that reads the module
    while frame.f_back is not None and is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame.f_code.co_code[frame.f_lasti] == IMPORT_FROM
