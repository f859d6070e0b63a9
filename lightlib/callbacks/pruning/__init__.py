"""Prune the weights of a model while it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.callbacks.pruning.model_pruning import ModelPruning

__all__ = ["ModelPruning"]

_get, _names = lazy.attributes(__name__, {"ModelPruning": "model_pruning"})

if not TYPE_CHECKING:  # type checkers see the names above only
    __getattr__, __dir__ = _get, _names
