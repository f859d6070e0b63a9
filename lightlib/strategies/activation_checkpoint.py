"""ActivationCheckpoint: activations are computed again in backward instead of kept."""

from __future__ import annotations

from lightlib.strategies.axis import Axis

__all__ = ["ActivationCheckpoint"]


class ActivationCheckpoint(Axis):
    """ActivationCheckpoint: activations are computed again in backward instead of kept."""
