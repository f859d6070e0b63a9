"""Objects of a real Lightning, and imports of one that is not installed: how to run their program."""

from __future__ import annotations

import re
from typing import Any

from lightlib.translations import Foreign
from lightlib_lightning.finder import ROOTS

__all__ = ["fix_for_import", "foreign"]


def foreign(value: Any) -> Foreign | None:
    """Return the package of an object, or a class, of a real Lightning, and the fix; None for any other.

    Example:
        >>> Theirs = type("EarlyStopping", (), {"__module__": "lightning.pytorch.callbacks.early_stopping"})
        >>> foreign(Theirs())[:2]
        ('EarlyStopping', 'lightning')
        >>> foreign("ddp")
    """
    kind = value if isinstance(value, type) else type(value)
    base = next((cls for cls in kind.__mro__ if cls.__module__.partition(".")[0] in ROOTS), None)
    if base is None:
        return None
    package = base.__module__.partition(".")[0]
    return Foreign(
        base.__name__,
        package,
        "start the program by `lightlib compat run …`, or import it from lightlib: `import lightlib as L` instead of "
        f"`import {package} as L`.",
    )


def fix_for_import(error: str, *, in_command: bool = True) -> str:
    """Return the fix for the message of a failed import of Lightning, in a command of lightlib or not.

    It is empty for any other message.

    Example:
        >>> fix_for_import("No module named 'lightning.pytorch'")
        'start it by `lightlib compat run -m lightlib …`, or import lightlib: `import lightlib as L`.'
        >>> fix_for_import("No module named 'pandas'")
        ''
    """
    if not re.search(rf"No module named '({'|'.join(ROOTS)})\b", error):
        return ""
    if not in_command:
        return "start the program by `lightlib compat run …`, or call lightlib.compat.install() first."
    return "start it by `lightlib compat run -m lightlib …`, or import lightlib: `import lightlib as L`."
