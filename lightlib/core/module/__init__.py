"""Module and DataModule: hooks, hyperparameters, loading, export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
