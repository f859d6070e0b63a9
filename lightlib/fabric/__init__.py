"""Fabric: the strategies, precisions, launchers and checkpoints of the Trainer for a loop of your own."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
