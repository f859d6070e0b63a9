"""Search for a learning rate or a batch size before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.tuner.tuning import Tuner

__all__ = ["Tuner"]

_get, _names = lazy.attributes(__name__, {"Tuner": "tuning"})

if not TYPE_CHECKING:  # type checkers see the name above only
    __getattr__, __dir__ = _get, _names
