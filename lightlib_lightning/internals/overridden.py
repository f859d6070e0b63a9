"""Methods of Lightning's callbacks that a project overrides, and that lightlib never calls."""

from __future__ import annotations

from typing import Any

from lightlib import report
from lightlib.errors import is_ours
from lightlib_lightning.tools.lacking import OF_A_PACKAGE, lacking

__all__ = ["warn_of_overridden"]


def warn_of_overridden(callback: Any) -> None:
    """Warn once for each method of a callback's class that overrides one of Lightning's, which lightlib lacks."""
    kinds = type(callback).__mro__
    ours = next((kind for kind in kinds if is_ours(kind.__module__)), None)
    if ours is None:
        return
    missing = lacking(ours.__name__)
    names = [name for kind in kinds[: kinds.index(ours)] for name, value in vars(kind).items() if _is_method(value)]
    for name in dict.fromkeys(name for name in names if name in missing):
        report.warn_once(
            ("overridden", type(callback), name),
            f"{type(callback).__name__}.{name} overrides a {'private ' * name.startswith('_')}method of Lightning's "
            f"{ours.__name__}, which lightlib does not call.\n"
            f"  Expected: hooks of {ours.__name__}, such as on_validation_end, or its public methods.\n"
            f"  Fix: move the code of {name} to such a hook; {OF_A_PACKAGE}",
        )


def _is_method(value: Any) -> bool:
    return callable(value) or isinstance(value, (staticmethod, classmethod, property))
