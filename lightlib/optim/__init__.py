"""Optimizers that torch does not have, and groups of parameters. Names are imported on first use."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
