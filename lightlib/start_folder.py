"""Remembers the working directory at `import lightlib`: a program may change it later."""

from __future__ import annotations

import os
from contextlib import suppress

__all__ = ["remember", "remembered"]

_folder = ""


def remember() -> None:
    """Remember the working directory, unless it was removed."""
    global _folder  # noqa: PLW0603  it belongs to the program
    with suppress(FileNotFoundError):
        _folder = os.getcwd()


def remembered() -> str:
    """Return the remembered directory."""
    return _folder
