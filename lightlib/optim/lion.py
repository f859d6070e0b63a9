"""Lion: steps of equal size along the sign of the momentum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lightlib.optim.per_parameter import PerParameter


class Lion(PerParameter):
    """Lion (evolved sign momentum): one momentum, of which only the sign counts.

    Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675, algorithm 2. With the
    gradient g, the momentum m (0 at first) and the parameter w::

        c = beta1 * m + (1 - beta1) * g
        w = w - lr * (sign(c) + weight_decay * w)
        m = beta2 * m + (1 - beta2) * g

    The authors advise a rate 3 to 10 times smaller than AdamW's, and a decay larger by the same factor.

    Args:
        params: Parameters, named parameters, or groups of them.
        lr: The learning rate. Default 1e-4.
        betas: How much of the momentum is kept: for the step, and from step to step. Default (0.9, 0.99).
        weight_decay: Decoupled from the gradient. Default 0.0.
        maximize: Steps up instead of down. Default False.

    Raises:
        ArgumentTypeError: An option has the wrong type.
        MisconfigurationException: An option is out of its range; in a step: a gradient is sparse.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        >>> optimizer = Lion([weight], lr=0.5)
        >>> (weight**2).sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.5, -1.5, 2.5]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        momentum, (beta1, beta2) = state["exp_avg"], group["betas"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(torch.lerp(gradient, momentum, beta1).sign_(), alpha=-group["lr"])
        momentum.lerp_(gradient, 1 - beta2)
