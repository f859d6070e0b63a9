"""Served: base of the stand-ins for Lightning's private classes, with errors for missing names."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from lightlib import report

__all__ = ["Served", "absent"]


def absent(owner: str, name: str, there: list[str]) -> str:
    """Return the message for a private name that compat does not provide, in three parts."""
    return (
        f"{owner} has no {name!r} in lightlib: it is internal to Lightning, and lightlib.compat does not provide it.\n"
        f"  Expected: {', '.join(there) if there else 'a public name'}.\n"
        "  Fix: use one of these or the public API; if the line is in an installed package, run this program with "
        "Lightning: leave compat off (`lightlib compat check` lists such places)."
    )


class _Kind(type):
    """Metaclass: a class attribute that is missing is named, and patching one that nothing calls is a warning."""

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(absent(cls.__name__, name, public(cls)), name=name, obj=cls)

    def __setattr__(cls, name: str, value: Any) -> None:
        if not name.startswith("__"):
            report.warn_once(
                ("patched", cls.__name__, name),
                f"{cls.__name__}.{name} is replaced, but lightlib does not call it.\n"
                "  Expected: a patch of a public class, or of a method that lightlib calls.\n"
                "  Fix: override the method of the Trainer, module, callback or strategy that does the work.",
            )
        super().__setattr__(name, value)


def public(kind: type) -> list[str]:
    """Return the names that a stand-in has, except Python's."""
    ours = ("of", "data", "_note", "_warn_of_no_effect")  # of lightlib, not of Lightning
    return sorted(name for name in dir(kind) if not name.startswith("__") and name not in ours)


class Served(metaclass=_Kind):
    """Base of the stand-ins: views of a Trainer under Lightning's names."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(absent(type(self).__name__, name, public(type(self))), name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        is_view = kind.__module__.startswith("lightlib.")  # a class of the user's keeps its attributes
        if is_view and isinstance(inspect.getattr_static(kind, name, None), (property, staticmethod, FunctionType)):
            found = inspect.getattr_static(kind, name)
            if not isinstance(found, property) or found.fset is None:
                report.warn_once(
                    ("set", kind.__name__, name),
                    f"{kind.__name__}.{name} of a Trainer is assigned, but lightlib does not use it.\n"
                    "  Expected: attributes that lightlib reads, such as fit_loop.max_epochs.\n"
                    "  Fix: override the hook or the public method that does the work; if the assignment is in an "
                    "installed package, run this program with Lightning.",
                )
                return
        super().__setattr__(name, value)
