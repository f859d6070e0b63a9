"""Clipping of gradients that may be spread over processes in several ways at once."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_value_, get_total_norm
from torch.optim import Optimizer

__all__ = ["clip"]


def clip(
    optimizer: Optimizer,
    value: float,
    algorithm: str,
    stages: Any = None,
    experts: Container[int] = (),
    spread: Any = None,
) -> Tensor | None:
    """Clip the gradients of `optimizer` in place; return their norm before, when the algorithm is ``"norm"``.

    Args:
        optimizer: Whose parameters are clipped; plain tensors and DTensors on any meshes.
        value: The largest norm of all gradients together (2-norm), or the largest absolute value.
        algorithm: ``"norm"`` or ``"value"``.
        stages: The group of the pipeline's stages, each of which has some of the parameters; None without a pipeline.
        experts: The ids of the parameters that no other process of `spread` has.
        spread: The group of the processes that have different experts.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if algorithm == "value":
        for alike in _by_mesh(parameters):
            clip_grad_value_(alike, value)
        return None
    device = parameters[0].grad.device if parameters else torch.device("cpu")
    squares = _squares([p for p in parameters if id(p) not in experts], device)
    if spread is not None:
        own = _squares([p for p in parameters if id(p) in experts], device)
        distributed.all_reduce(own, group=spread)
        squares = squares + own
    if stages is not None:
        distributed.all_reduce(squares, group=stages)
    norm = squares.sqrt()
    factor = torch.clamp(value / (norm + 1e-6), max=1.0)  # as torch.nn.utils.clip_grads_with_norm_
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.mul_(factor.to(parameter.grad.device))
    return norm


def _squares(parameters: list[Any], device: torch.device) -> Tensor:
    squares = torch.zeros((), device=device)
    for alike in _by_mesh(parameters):
        squares = squares + _norm([p.grad for p in alike]).to(device).square()
    return squares


def _by_mesh(parameters: list[Any]) -> list[list[Any]]:
    """Return the parameters in lists, in each of which torch can work on all gradients at once."""
    groups: dict[Any, list[Any]] = {}
    for parameter in parameters:
        grad = parameter.grad
        key = (grad.device_mesh, str(grad.placements)) if isinstance(grad, DTensor) else grad.device
        groups.setdefault(key, []).append(parameter)
    return list(groups.values())


def _norm(gradients: list[Tensor]) -> Tensor:
    norm = get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
