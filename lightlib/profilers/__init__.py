"""Profilers: measure the time, memory and throughput of a run. Each is imported on first use."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
