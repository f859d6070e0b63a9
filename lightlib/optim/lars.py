"""LARS: SGD with momentum, with the rate of each parameter scaled by the norm of the parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lightlib.optim.per_parameter import PerParameter


class LARS(PerParameter):
    """LARS (layer-wise adaptive rate scaling): for large batches. Every parameter tensor is a layer.

    Source: You et al. 2017, "Large Batch Training of Convolutional Networks", arXiv:1708.03888, algorithm 1. With the
    gradient g, the momentum v (0 at first) and the parameter w::

        rate = lr * trust_coefficient * norm(w) / (norm(g) + weight_decay * norm(w))
        v = momentum * v + rate * (g + weight_decay * w)
        w = w - v

    Where the norm of the parameter or of the gradient is 0, the rate is `lr`. The momentum includes the rate, so a
    schedule takes effect gradually (torch's SGD scales the entire momentum by the current rate).

    Args:
        params: Parameters, named parameters, or groups of them. Biases and the parameters of normalization layers are
            usually given to another optimizer, or as a group with ``weight_decay=0``.
        lr: The learning rate; large ones are usual. Default 0.1.
        momentum: How much of the momentum is kept from step to step. Default 0.9.
        weight_decay: Default 0.0; the authors use 5e-4.
        trust_coefficient: How far a layer moves, as a part of its size, for ``lr=1``. Default 1e-3.
        maximize: Steps up instead of down. Default False.

    Raises:
        ArgumentTypeError: An option has the wrong type.
        MisconfigurationException: An option is out of its range; in a step: a gradient is sparse.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
        >>> optimizer = LARS([weight], lr=1.0, trust_coefficient=0.1)
        >>> (weight**2).sum().backward()
        >>> optimizer.step()
        >>> [round(value, 3) for value in weight.tolist()]  # a tenth shorter
        [2.7, -3.6]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        *,
        maximize: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "maximize": maximize,
        }
        super().__init__(params, options)

    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        decay = group["weight_decay"]
        size, slope = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(gradient)
        trust = group["trust_coefficient"] * size / (slope + decay * size)
        rate = torch.where((size > 0) & (slope > 0), trust, 1.0) * group["lr"]
        change = gradient.add(parameter, alpha=decay).mul_(rate)
        parameter.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(change))
