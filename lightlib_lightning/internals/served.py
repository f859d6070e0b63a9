"""Served: base of the stand-ins for Lightning's private classes, with errors for missing names."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from lightlib import report
from lightlib.errors import is_ours
from lightlib_lightning.tools.lacking import NOT_LIGHTNINGS, OF_A_PACKAGE

__all__ = ["Served", "absent"]


def absent(owner: str, name: str, there: list[str]) -> str:
    """Return the message for a private name that compat does not provide, in three parts."""
    return (
        f"{owner} has no {name!r} in lightlib: it is a private name, which lightlib.compat does not provide.\n"
        f"  Expected: {', '.join(there) if there else 'a public name'}.\n"
        f"  Fix: use one of these or the public API; {OF_A_PACKAGE}"
    )


_MADE = "__made__"  # the mark of an object that has its attributes


class _Kind(type):
    """Metaclass: a class attribute that is missing is named, and patching one that nothing calls is a warning."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        instance = super().__call__(*args, **kwargs)
        vars(instance)[_MADE] = True
        return instance

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(absent(cls.__name__, name, public(cls)), name=name, obj=cls)

    def __setattr__(cls, name: str, value: Any) -> None:
        if not name.startswith("__"):
            report.warn_once(
                ("patched", cls.__name__, name),
                f"{cls.__name__}.{name} is replaced, but lightlib does not call it.\n"
                "  Expected: a patch of a public class, or of a method that lightlib calls.\n"
                "  Fix: override the method of the Trainer, module, callback or strategy that does the work; "
                + OF_A_PACKAGE,
            )
        super().__setattr__(name, value)


def public(kind: type) -> list[str]:
    """Return the names that a stand-in has, except Python's."""
    return sorted(name for name in dir(kind) if not name.startswith("__") and name not in NOT_LIGHTNINGS)


class Served(metaclass=_Kind):
    """Base of the stand-ins: views of a Trainer under Lightning's names."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(absent(type(self).__name__, name, public(type(self))), name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        attribute = inspect.getattr_static(kind, name, None)
        acts = isinstance(attribute, property) and attribute.fset is not None
        is_made = _MADE in vars(self) and is_ours(kind.__module__)  # the user's class has its attributes
        if is_made and not acts:
            report.warn_once(
                ("set", kind.__name__, name),
                f"{kind.__name__}.{name} of a Trainer is assigned, but lightlib does not use it.\n"
                "  Expected: attributes that lightlib reads, such as fit_loop.max_epochs.\n"
                f"  Fix: override the hook or the public method that does the work; {OF_A_PACKAGE}",
            )
        if acts or not isinstance(attribute, (property, staticmethod, FunctionType)):
            super().__setattr__(name, value)
