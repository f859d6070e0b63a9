"""Losses that torch lacks, or has in newer releases only, and their parts; imported on first use."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
