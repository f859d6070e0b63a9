"""Samplers and data sets that torch lacks; they are sharded and resume. Imported on first use."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
