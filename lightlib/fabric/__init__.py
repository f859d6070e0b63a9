"""Fabric: the strategies, precisions, launchers and checkpoints of the Trainer for a loop of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.fabric.fabric import Fabric
    from lightlib.fabric.wrapped import is_wrapped

__all__ = ["Fabric", "is_wrapped"]

_get, _names = lazy.attributes(__name__, {"Fabric": "fabric", "is_wrapped": "wrapped"})

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
