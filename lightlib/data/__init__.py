"""Data: loaders that are sharded and resume; mixtures and packed documents. Imported on first use."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
