"""Objects of a real Lightning, and imports of one that is not installed: how to run their program."""

from __future__ import annotations

import re
from typing import Any

_ROOTS = ("lightning", "pytorch_lightning", "lightning_fabric")


def fix_for_lightnings(value: Any) -> str:
    """Return the fix for an object, or a class, of a real Lightning; empty for any other.

    Example:
        >>> Theirs = type("EarlyStopping", (), {"__module__": "lightning.pytorch.callbacks.early_stopping"})
        >>> fix_for_lightnings(Theirs())
        'start the program by `lightlib compat run …`, or import it from lightlib: ...'
        >>> fix_for_lightnings("ddp")
        ''
    """
    root = root_of_lightning(value)
    if not root:
        return ""
    return (
        "start the program by `lightlib compat run …`, or import it from lightlib: `import lightlib as L` instead of "
        f"`import {root} as L`."
    )


def fix_for_missing(error: str) -> str:
    """Return the fix for the message of a failed import of Lightning in a command of lightlib; empty for any other.

    Example:
        >>> fix_for_missing("No module named 'lightning.pytorch'")
        'start it by `lightlib compat run -m lightlib …`, or import lightlib: `import lightlib as L`.'
        >>> fix_for_missing("No module named 'pandas'")
        ''
    """
    if not re.search(rf"No module named '({'|'.join(_ROOTS)})\b", error):
        return ""
    return "start it by `lightlib compat run -m lightlib …`, or import lightlib: `import lightlib as L`."


def root_of_lightning(value: Any) -> str:
    """Return the package of Lightning that has the class of an object, or a base of it; empty if none has."""
    kind = value if isinstance(value, type) else type(value)
    roots = (cls.__module__.partition(".")[0] for cls in kind.__mro__)
    return next((root for root in roots if root in _ROOTS), "")
