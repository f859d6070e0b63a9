"""LAMB: Adam with the step of each parameter scaled by the norm of the parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lightlib.optim.per_parameter import PerParameter


class LAMB(PerParameter):
    """LAMB (layer-wise adaptive moments): for large batches. Every parameter tensor is a layer.

    Source: You et al. 2019, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
    arXiv:1904.00962, algorithm 2, with the identity for its function phi: the norm of the parameter is not clipped.
    With the gradient g, the moments m and v (0 at first), the parameter w and the number t of the step::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        r = (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * w
        w = w - lr * norm(w) / norm(r) * r

    Where one of the norms is 0, the ratio of the norms is 1.

    Args:
        params: Parameters, named parameters, or groups of them.
        lr: The learning rate. Default 1e-3.
        betas: How much of the two moments is kept from step to step. Default (0.9, 0.999).
        eps: Added to the denominator. Default 1e-6.
        weight_decay: Default 0.0; the authors use 0.01.
        maximize: Steps up instead of down. Default False.

    Raises:
        ArgumentTypeError: An option has the wrong type.
        MisconfigurationException: An option is out of its range; in a step: a gradient is sparse.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
        >>> optimizer = LAMB([weight], lr=0.1)
        >>> (weight**2).sum().backward()
        >>> optimizer.step()
        >>> [round(value, 3) for value in weight.tolist()]  # norm 5: a tenth of it along (1, -1)
        [2.646, -3.646]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, options)

    def step_parameter(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["step"] = torch.tensor(0.0)  # torch keeps a state of this name on the CPU: reading it does not wait
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] += 1
        number, (beta1, beta2) = state["step"].item(), group["betas"]
        first = state["exp_avg"].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        change = (first / (1 - beta1**number)).div_((second / (1 - beta2**number)).sqrt_().add_(group["eps"]))
        change.add_(parameter, alpha=group["weight_decay"])
        size, step = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(change)
        ratio = torch.where((size > 0) & (step > 0), size / step, 1.0)
        parameter.sub_(change.mul_(ratio * group["lr"]))
