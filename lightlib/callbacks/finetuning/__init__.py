"""Freeze and unfreeze parts of a model while it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.callbacks.finetuning.backbone import BackboneFinetuning, multiplicative
    from lightlib.callbacks.finetuning.base import BaseFinetuning

__all__ = ["BackboneFinetuning", "BaseFinetuning", "multiplicative"]

_get, _names = lazy.attributes(
    __name__, {"BackboneFinetuning": "backbone", "BaseFinetuning": "base", "multiplicative": "backbone"}
)

if not TYPE_CHECKING:  # type checkers see the names above only
    __getattr__, __dir__ = _get, _names
