"""Optimizers that torch does not have: Lion, LAMB and LARS. Every name is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.optim.lamb import LAMB
    from lightlib.optim.lars import LARS
    from lightlib.optim.lion import Lion

__all__ = ["LAMB", "LARS", "Lion"]

_get, _names = lazy.attributes(__name__, {"LAMB": "lamb", "LARS": "lars", "Lion": "lion"})

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
