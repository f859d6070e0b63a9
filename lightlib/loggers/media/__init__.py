"""Media for loggers: images, figures, histograms, text, tables and audio; and drawing on images."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
