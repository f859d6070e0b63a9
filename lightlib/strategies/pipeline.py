"""Pipeline: processes share out the layers, and micro-batches flow through them."""

from __future__ import annotations

from lightlib.strategies.axis import Axis

__all__ = ["Pipeline"]


class Pipeline(Axis):
    """Pipeline: processes share out the layers, and micro-batches flow through them."""

    name = "pipeline"

    def __init__(self, size: int = 1) -> None:
        self.size = size
