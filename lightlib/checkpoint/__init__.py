"""Checkpoints: write, read, inspect, verify and convert them, from Python and the command line."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
