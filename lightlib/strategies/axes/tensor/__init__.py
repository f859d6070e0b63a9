"""The tensor axis: how it finds layers to split, splits them, and verifies the result."""

from lightlib.strategies.axes.tensor.axis import Tensor
from lightlib.strategies.axes.tensor.names import transformer_plan

__all__ = ["Tensor", "transformer_plan"]
