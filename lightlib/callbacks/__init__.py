"""Callbacks: built-in ones and their base class. Every name is imported on first use."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
