"""Loggers: record the metrics of a run. Each is imported when its name is first used."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
