"""Context: processes share out the sequence of one batch."""

from __future__ import annotations

from lightlib.strategies.axis import Axis

__all__ = ["Context"]


class Context(Axis):
    """Context: processes share out the sequence of one batch."""

    name = "context"

    def __init__(self, size: int = 1) -> None:
        self.size = size
