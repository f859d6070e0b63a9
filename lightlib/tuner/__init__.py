"""Search for a learning rate or a batch size before a run, and scale learning rates."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
