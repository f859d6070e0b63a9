"""Expert: processes share out the experts of a mixture."""

from __future__ import annotations

from lightlib.strategies.axis import Axis

__all__ = ["Expert"]


class Expert(Axis):
    """Expert: processes share out the experts of a mixture."""

    name = "expert"

    def __init__(self, size: int = 1) -> None:
        self.size = size
