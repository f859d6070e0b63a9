"""The tensor axis: how it finds layers to split, splits them, and verifies the result."""

from lightlib.strategies.axes.tensor.layer_names import transformer_plan
from lightlib.strategies.axes.tensor.tensor_axis import Tensor

__all__ = ["Tensor", "transformer_plan"]
