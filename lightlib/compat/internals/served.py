"""Served: base of the stand-ins for Lightning's private classes, with errors for missing names."""

from __future__ import annotations

from typing import Any

from lightlib import report

__all__ = ["Served", "absent"]


def absent(owner: str, name: str, there: list[str]) -> str:
    """Return the message for a private name that compat does not provide, in three parts."""
    return (
        f"{owner} has no {name!r} in lightlib: it is internal to Lightning, and lightlib.compat does not provide it.\n"
        f"  Expected: {', '.join(there) if there else 'a public name'}.\n"
        "  Fix: use one of these or the public API, or set lightlib.compat aside for this program "
        "(`lightlib compat check` lists such places)."
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
    return sorted(name for name in dir(kind) if not name.startswith("__") and name != "of")


class Served(metaclass=_Kind):
    """Base of the stand-ins: views of a Trainer under Lightning's names."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(absent(type(self).__name__, name, public(type(self))), name=name, obj=self)
