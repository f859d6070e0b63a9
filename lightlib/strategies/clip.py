"""Clip gradients of parameters that are sharded over processes in several ways at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_value_, get_total_norm
from torch.optim import Optimizer

from lightlib.strategies.axes.axis import LocalParameters


def clip(optimizer: Optimizer, value: float, algorithm: str, local: Sequence[LocalParameters] = ()) -> Tensor | None:
    """Clip the gradients of `optimizer` in place; return their norm before, when the algorithm is ``"norm"``.

    Args:
        optimizer: Whose parameters are clipped; plain tensors and DTensors on any meshes.
        value: The largest norm of all gradients together (2-norm), or the largest absolute value.
        local: The parameters that only this process of a group holds, for each such group; in one order on all ranks.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if algorithm == "value":
        for group in _by_mesh(parameters):
            clip_grad_value_(group, value)
        return None
    norm = _total_squares(parameters, local).sqrt()
    factor = torch.clamp(value / (norm + 1e-6), max=1.0)  # as torch.nn.utils.clip_grads_with_norm_
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.mul_(factor.to(parameter.grad.device))
    return norm


def _total_squares(parameters: list[Any], local: Sequence[LocalParameters]) -> Tensor:
    """Return the sum of squares over all processes, with one reduction for each group."""
    device = parameters[0].grad.device if parameters else torch.device("cpu")
    if not local:
        return _squares(parameters, device)
    kinds: list[list[Any]] = [[] for _ in range(2 ** len(local))]  # by the groups in which they are local, as bits
    for parameter in parameters:
        kinds[sum(2**index for index, held in enumerate(local) if parameter in held)].append(parameter)
    squares = torch.stack([_squares(kind, device) for kind in kinds])
    for index, held in enumerate(local):
        summed = [kind for kind in range(len(kinds)) if kind & 2**index]
        reduced = squares[summed]
        distributed.all_reduce(reduced, group=held.group)
        squares[summed] = reduced
    return squares.sum()


def _squares(parameters: list[Any], device: torch.device) -> Tensor:
    squares = torch.zeros((), device=device)
    for group in _by_mesh(parameters):
        norm = get_total_norm([p.grad for p in group])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        squares = squares + norm.to(device).square()
    return squares


def _by_mesh(parameters: list[Any]) -> list[list[Any]]:
    """Return the parameters in lists, in each of which torch can work on all gradients at once."""
    groups: dict[Any, list[Any]] = {}
    for parameter in parameters:
        grad = parameter.grad
        key = (grad.device_mesh, str(grad.placements)) if isinstance(grad, DTensor) else grad.device
        groups.setdefault(key, []).append(parameter)
    return list(groups.values())
