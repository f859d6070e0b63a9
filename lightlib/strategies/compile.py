"""Compile: torch.compile for each block."""

from __future__ import annotations

from lightlib.strategies.axis import Axis

__all__ = ["Compile"]


class Compile(Axis):
    """Compile: torch.compile for each block."""
