"""Learning-rate schedules that torch does not have, and schedules of momentum, betas and weight decay."""

from __future__ import annotations

from lightlib import lazy

__all__, __getattr__, __dir__ = lazy.exports(__name__)
