"""Launch: start or detect the processes of a run, and propagate failures and stops between them."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
