"""Progress bars: plain lines, rich, tqdm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
