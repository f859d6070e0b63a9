"""Optimizers that torch does not have: Lion, LAMB and LARS. Every name is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.optim.lamb import LAMB
    from lightlib.optim.lars import LARS
    from lightlib.optim.lion import Lion

__all__ = ["LAMB", "LARS", "Lion"]

__getattr__, __dir__ = lazy.attributes(__name__, {"LAMB": "lamb", "LARS": "lars", "Lion": "lion"})
